"""Metrics as lines of text: Graphite, StatsD, DogStatsD, InfluxDB. An event is one line: `split` cuts packets."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Kind, arrow_type
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.arrow_texts import without_empty
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.fixed_columns import (
    DOUBLE,
    TAGS,
    TIMESTAMP,
    FixedColumns,
    Given,
    concat,
    decoded_rows,
    in_range,
    instants,
    maps,
    merged,
    only,
    optional,
    row_by_row,
)
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.patterns import extract
from penstock.spark.codecs.scalars import Misfit

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_DIGITS = r"\d{1,11}"
"""Of seconds: years to 5138."""
_NOT_A_NUMBER = "It must be a number, and finite."


# Graphite: path;tag=value number time

_PATH = r"[^\s;]+"
_TAG_NAME = r"[^\s;=!]+"
_GRAPHITE = (
    rf"(?P<path>{_PATH})(?P<tags>(?:;{_TAG_NAME}={_PATH})*)[ \t]+(?P<number>{_NUMBER}|[nN]a[nN])[ \t]+"
    rf"(?P<time>{_DIGITS}|-1|[nN])?(?:\.\d+)?"
)


class Graphite(FixedColumns):
    about = CODECS["graphite"]
    of = (Field("path", STRING), Field("number", DOUBLE), Field("time", TIMESTAMP), Field("tags", TAGS))

    def decode(self, values: pa.BinaryArray) -> Columns:
        found = extract(values, _GRAPHITE, "is not a line of Graphite: path number time")
        times = found.texts("time")
        times = pc.if_else(pc.match_substring_regex(times, r"^\d+$"), times, None)
        numbers = pc.utf8_lower(found.texts("number")).cast(pa.float64())
        arrays = [
            found.texts("path"),
            numbers,
            instants(times, "s"),
            maps(found.present("tags"), lambda text: dict(one.split("=", 1) for one in text[1:].split(";"))),
        ]
        reason = "is not a line of Graphite: its number is out of range"
        return only(Columns(arrays, found.failed), found.rows, in_range(numbers), reason)

    def write(self, rows: Given) -> pa.StringArray:
        hint = "A path, and the value of a tag, must not be empty, and must have neither spaces nor `;`."
        path = rows.fitting(rows.needed("path"), _PATH, hint)
        tags = rows.pairs(
            "tags",
            lambda keys, items: concat(
                ";",
                rows.fitting(
                    keys,
                    _TAG_NAME,
                    "The name of a tag must not be empty, and must have no spaces, and none of `; = !`.",
                ),
                "=",
                rows.fitting(items, _PATH, hint),
            ),
            "",
        )
        number = rows.fitting(rows.needed("number"), f"{_NUMBER}|[nN]a[nN]", _NOT_A_NUMBER)
        times = rows.fitting(rows.since_1970("time", "s"), _DIGITS, "A time must be one of 1970 to 5138.")
        return concat(path, tags, " ", number, " ", pc.fill_null(times, "-1"))


# StatsD: name:value|kind|@rate

_STATSD_NAME = r"[^:|@\s]+"
_MEMBER = r"[^|\n]+"
_STATSD_KIND = "c|g|ms|h|s|m"
_STATSD = rf"(?P<name>{_STATSD_NAME}):(?P<text>{_MEMBER})\|(?P<kind>{_STATSD_KIND})(?:\|@(?P<rate>{_NUMBER}))?"


class Statsd(FixedColumns):
    """`number` is null for a set (`s`), whose member is in `text`. `text` of a gauge with a sign is a difference."""

    about = CODECS["statsd"]
    of = (
        Field("name", STRING),
        Field("kind", STRING),
        Field("number", DOUBLE),
        Field("text", STRING),
        Field("rate", DOUBLE),
    )

    def decode(self, values: pa.BinaryArray) -> Columns:
        found = extract(values, rf"{_STATSD}", "is not a metric of StatsD: name:value|kind")
        kinds, texts = found.texts("kind"), found.texts("text")
        is_set = pc.equal(kinds, "s")
        is_number = pc.match_substring_regex(texts, rf"^{_NUMBER}$")
        numbers = pc.if_else(pc.and_not(is_number, is_set), texts, None).cast(pa.float64())
        rates = found.present("rate").cast(pa.float64())
        good = pc.and_(pc.or_(is_set, is_number), pc.and_(in_range(numbers), in_range(rates)))
        columns = Columns([found.texts("name"), kinds, numbers, texts, rates], found.failed)
        reason = "is not a metric of StatsD: its value or its rate is not a number, or is out of range"
        return only(columns, found.rows, good, reason)

    def write(self, rows: Given) -> pa.StringArray:
        name = rows.fitting(
            rows.needed("name"), _STATSD_NAME, "A name must not be empty, and must have no spaces, and none of `: | @`."
        )
        kind = rows.fitting(
            rows.needed("kind"), _STATSD_KIND, f"A kind must be one of {_STATSD_KIND.replace('|', ', ')}."
        )
        rate = rows.fitting(rows.texts("rate"), _NUMBER, _NOT_A_NUMBER)
        return concat(name, ":", _statsd_texts(rows, kind), "|", kind, optional("|@", rate))


def _statsd_texts(rows: Given, kind: pa.StringArray) -> pa.StringArray:
    """`text`, which has the sign of a difference, or else `number`, which has to be the same."""
    is_set = pc.equal(kind, "s")
    texts, numbers = without_empty(rows.texts("text")), rows.texts("number")
    rows.refuse(numbers, is_set, "The member of a set (`s`) is in `text`: let `number` be null.")
    is_lowered = pc.and_(pc.equal(kind, "g"), pc.and_(texts.is_null(), pc.starts_with(numbers, "-")))
    rows.refuse(numbers, is_lowered, "It would be read as a difference: if that is meant, let `text` have it.")
    rows.complete("text", pc.if_else(is_set, texts, ""))
    found = rows.complete("number", pc.coalesce(texts, numbers))
    rows.fitting(pc.if_else(is_set, found, None), _MEMBER, "A member of a set must have neither `|` nor line ends.")
    written = rows.fitting(pc.if_else(is_set, None, found), _NUMBER, _NOT_A_NUMBER)
    values = written.cast(pa.float64())
    rows.refuse(written, pc.is_inf(values), _NOT_A_NUMBER)
    differ = pc.not_equal(values, pc.if_else(is_set, None, numbers).cast(pa.float64()))
    rows.refuse(found, differ, "`number` and `text` differ: let one of the two be null.")
    return found


# DogStatsD: name:value:value|kind|@rate|#tags|…   _e{…}:title|text|…   _sc|name|status|…

_PLAIN_NUMBER = _NUMBER.removeprefix("[+-]?")
_PLAIN_TAG = r"(?:[^:,|\r\n][^,|\r\n]*)?"
_PLAIN_DOGSTATSD = (
    rf"(?P<name>[^:|{{\r\n]+):(?P<number>-?{_PLAIN_NUMBER})\|(?P<kind>c|g|ms|h|d|m)"
    rf"(?:\|@(?P<rate>{_PLAIN_NUMBER}))?(?:\|#(?P<tags>{_PLAIN_TAG}(?:,{_PLAIN_TAG})*))?"
)
_NUMBERS = Kind("array", of=(DOUBLE,))
_KINDS = frozenset(("c", "g", "ms", "h", "s", "d", "m"))
_KIND_PATTERN = "c|g|ms|h|s|d|m|event|check"
_EVENT = re.compile(r"_e\{(\d{1,6}),(\d{1,6})\}:", re.DOTALL)
_LINE_END = re.compile(r"\r?\n\Z")
_TIME_PART = re.compile(rf"T{_DIGITS}", re.ASCII)
"""The only part with a value and without a colon."""
_NAMED_PART = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*):")
IS_NUMBER = re.compile(_NUMBER, re.ASCII)


class DogStatsd(FixedColumns):
    """`kind` is that of StatsD, `event`, or `check`. `text` is the member of a set, the text of an event, or the status
    of a check. `attributes` has the other parts by their names, such as `c`, `card`, `d`, `e`, `h`, `k`, `m`, `p`, `s`,
    `t`, and as `T` the seconds since 1970 of a metric that has its own time.
    """

    about = CODECS["dogstatsd"]
    of = (
        Field("kind", STRING),
        Field("name", STRING),
        Field("numbers", _NUMBERS),
        Field("text", STRING),
        Field("rate", DOUBLE),
        Field("tags", TAGS),
        Field("attributes", TAGS),
    )

    def decode(self, values: pa.BinaryArray) -> Columns:
        """Metrics with one value at once, and others one by one."""
        found = extract(values, _PLAIN_DOGSTATSD, "")
        numbers, rates = found.texts("number").cast(pa.float64()), found.present("rate").cast(pa.float64())
        count, empty = len(numbers), pa.array([[]], arrow_type(TAGS))
        arrays = [
            found.texts("kind"),
            found.texts("name"),
            pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), numbers, arrow_type(_NUMBERS)),
            pa.nulls(count, pa.string()),
            rates,
            maps(found.present("tags"), _dog_tags),
            empty.take(pa.array(np.zeros(count, np.int64))),
        ]
        plain = only(Columns(arrays, found.failed), found.rows, pc.and_(in_range(numbers), in_range(rates)), "")
        left = np.array(sorted(plain.failed), np.int64)
        parts = [(Columns(plain.arrays), np.setdiff1d(found.rows, left) if plain.failed else found.rows)]
        if plain.failed:
            parts.append(decoded_rows(values, left, lambda of: row_by_row(of, _dogstatsd, self.of)))
        return merged(parts, {})

    def write(self, rows: Given) -> pa.StringArray:
        hint = f"A kind must be one of {_KIND_PATTERN.replace('|', ', ')}."
        kind = rows.fitting(rows.needed("kind"), _KIND_PATTERN, hint)
        more, last = _attributes(rows.column("attributes"))
        rate = rows.fitting(rows.texts("rate"), _NUMBER, _NOT_A_NUMBER)
        tags = rows.pairs("tags", lambda keys, items: _written_dog_tags(rows, keys, items), ",")
        shown_tags = pc.if_else(pc.equal(tags, ""), "", concat("|#", tags))
        return concat(_heads(rows, kind), optional("|@", rate), more, shown_tags, last)


def _heads(rows: Given, kind: pa.StringArray) -> pa.StringArray:
    """The part with the name and the value."""
    name, text, numbers = rows.needed("name"), without_empty(rows.texts("text")), rows.elements("numbers", ":")
    has_text = pc.is_in(kind, pa.array(["s", "event", "check"]))
    rows.refuse(numbers, has_text, "Sets, events and checks have a `text`: let `numbers` be null.")
    rows.refuse(text, pc.invert(has_text), "`text` is that of sets, events and checks: let it be null.")
    rows.fitting(numbers, f"{_NUMBER}(?::{_NUMBER})*", _NOT_A_NUMBER)
    rows.complete("numbers", pc.if_else(has_text, "", numbers))
    is_event, is_check = pc.equal(kind, "event"), pc.equal(kind, "check")
    metric = pc.if_else(pc.or_(is_event, is_check), None, name)
    rows.fitting(metric, r"[^:|\n]+", "A name must not be empty, and must have neither `:` and `|` nor line ends.")
    rows.refuse(metric, pc.starts_with(metric, "_e{"), "The line would be read as an event.")
    if not pc.any(has_text).as_py():
        return concat(name, ":", numbers, "|", kind)
    rows.complete("text", pc.if_else(is_event, "", pc.if_else(has_text, text, "")))
    rows.fitting(
        pc.if_else(pc.equal(kind, "s"), text, None), _MEMBER, "A member of a set must have neither `|` nor line ends."
    )
    rows.fitting(
        pc.if_else(is_check, name, None),
        r"[^|\n]+",
        "A name must not be empty, and must have neither `|` nor line ends.",
    )
    rows.fitting(pc.if_else(is_check, text, None), "[0-3]", "The status of a check must be 0, 1, 2 or 3.")
    titles = (pc.if_else(is_event, of, "") for of in (name, pc.fill_null(text, "")))
    head = pc.if_else(is_event, _event_head(rows, *titles), concat(name, ":", pc.coalesce(numbers, text), "|", kind))
    return pc.if_else(is_check, concat("_sc|", name, "|", text), head)


def _event_head(rows: Given, title: pa.StringArray, text: pa.StringArray) -> pa.StringArray:
    for each in (title, text):
        rows.refuse(
            each,
            pc.match_substring(each, "\\n"),
            r"A title and a text must not have `\n`, which would be read as a line end.",
        )
    title, text = (pc.replace_substring(each, "\n", "\\n") for each in (title, text))
    sizes = [pc.binary_length(each).cast(pa.string()) for each in (title, text)]
    return concat("_e{", sizes[0], ",", sizes[1], "}:", title, "|", text)


def _written_dog_tags(rows: Given, keys: pa.StringArray, items: pa.StringArray) -> pa.StringArray:
    rows.fitting(
        keys, r"[^,:|\n]+", "The name of a tag must not be empty, and must have none of `, : |`, and no line ends."
    )
    rows.fitting(items, r"[^,|\n]*", "The value of a tag must have neither `,` and `|` nor line ends.")
    return pc.if_else(pc.equal(items, ""), keys, concat(keys, ":", items))


def _attributes(column: pa.Array) -> tuple[pa.StringArray, pa.StringArray]:
    """Those before the tags, and the message, which is the last part. Few rows have any."""
    more, last = [""] * len(column), [""] * len(column)
    for row, given in enumerate(python_values(column)):
        for key, value in (given or {}).items():
            if value is None:
                continue
            part = _attribute(key, str(value))
            if key == "m":
                last[row] = part
            else:
                more[row] += part
    return pa.array(more, pa.string()), pa.array(last, pa.string())


def _attribute(key: str, value: str) -> str:
    """Raises RequestError for one that is read as another part."""
    if key == "T" and _TIME_PART.fullmatch(f"T{value}"):
        return f"|T{value}"
    if key == "T" or not _NAMED_PART.fullmatch(f"{key}:") or "|" in value or "\n" in value:
        raise RequestError(
            f"dogstatsd cannot write the attribute {f'{key}:{value}'[:100]!r}",
            "Its name must be a word, its value without `|` and line ends, and `T` a number of seconds.",
        )
    return f"|{key}:{value}"


def _dogstatsd(value: bytes) -> tuple[Any, ...]:
    try:
        line = _LINE_END.sub("", value.decode())
    except UnicodeDecodeError:
        raise Misfit("is not valid UTF-8") from None
    if line.startswith("_e{"):
        return _dog_event(line)
    if "\n" in line:
        raise Misfit("is not one line")
    if line.startswith("_sc|"):
        _, name, status, *parts = (*line.split("|"), "", "")
        if status not in ("0", "1", "2", "3") or not name:
            raise Misfit("is not a service check of DogStatsD: _sc|name|status")
        return ("check", name, None, status, *_more(parts))
    head, *parts = line.split("|")
    name, colon, text = head.partition(":")
    if not name or not colon or not text or not parts or parts[0] not in _KINDS:
        raise Misfit("is not a metric of DogStatsD: name:value|kind")
    if parts[0] == "s":
        return (parts[0], name, None, text, *_more(parts[1:]))
    values = text.split(":")
    if not all(map(IS_NUMBER.fullmatch, values)):
        raise Misfit("is not a metric of DogStatsD: its value is not a number")
    return (parts[0], name, [*map(_double, values)], None, *_more(parts[1:]))


def _double(text: str) -> float:
    if math.isinf(number := float(text)):
        raise Misfit(f"has the number {text[:40]}, which is out of range")
    return number


def _dog_event(line: str) -> tuple[Any, ...]:
    found = _EVENT.match(line)
    if found is None:
        raise Misfit("is not an event of DogStatsD: _e{…}:title|text")
    rest, (title, text) = line[found.end() :].encode(), map(int, found.groups())
    if (
        len(rest) < title + text + 1
        or rest[title : title + 1] != b"|"
        or rest[title + text + 1 :][:1] not in (b"", b"|")
    ):
        raise Misfit("is not an event of DogStatsD: its title and text have other lengths")
    shown_title, shown_text = (
        rest[:title].decode(errors="replace"),
        rest[title + 1 : title + text + 1].decode(errors="replace"),
    )
    parts = [one for one in rest[title + text + 1 :].decode(errors="replace").split("|") if one]
    return ("event", shown_title.replace("\\n", "\n"), None, shown_text.replace("\\n", "\n"), *_more(parts))


def _more(parts: list[str]) -> tuple[float | None, list[tuple[str, str]], list[tuple[str, str]]]:
    """The rate, the tags, and the other parts."""
    rate, tags, attributes = None, dict[str, str](), dict[str, str]()
    for part in parts:
        if "\n" in part:
            raise Misfit("is not one line")
        if part.startswith("@") and IS_NUMBER.fullmatch(part, 1):
            rate = _double(part[1:])
        elif part.startswith("#"):
            tags |= _dog_tags(part[1:])
        elif _TIME_PART.fullmatch(part):
            attributes["T"] = part[1:]
        elif (found := _NAMED_PART.match(part)) and found[1] != "T":
            attributes[found[1]] = part[found.end() :]
        elif part:
            raise Misfit(f"has the unknown part {part[:40]!r}")
    return rate, [*tags.items()], [*attributes.items()]


def _dog_tags(text: str) -> dict[str, str]:
    pairs = (tag.partition(":") for tag in text.split(",") if tag)
    tags = {key: value for key, _, value in pairs}
    if "" in tags:
        raise Misfit("has a tag without a name")
    return tags
