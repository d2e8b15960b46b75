"""Metrics as lines of text: Graphite, StatsD, DogStatsD, InfluxDB. An event is one line: `split` cuts packets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.kinds import STRING, Field, Kind, arrow_type
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.fixed_columns import (
    DOUBLE,
    TAGS,
    TIMESTAMP,
    FixedColumns,
    Given,
    concat,
    decoded_rows,
    instants,
    maps,
    merged,
    optional,
    row_by_row,
)
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.patterns import extract
from penstock.spark.codecs.scalars import Misfit

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?"
_DIGITS = r"\d{1,11}"
"""Of seconds: years to 5138."""


# Graphite: path;tag=value number time

_GRAPHITE = (
    rf"(?P<path>[^\s;]+)(?P<tags>(?:;[^\s;=!]+=[^\s;]+)*)[ \t]+(?P<number>{_NUMBER}|[nN]a[nN])[ \t]+"
    rf"(?P<time>{_DIGITS}|-1|[nN])?(?:\.\d+)?"
)


class Graphite(FixedColumns):
    about = CODECS["graphite"]
    of = (Field("path", STRING), Field("number", DOUBLE), Field("time", TIMESTAMP), Field("tags", TAGS))

    def decode(self, values: pa.BinaryArray) -> Columns:
        found = extract(values, _GRAPHITE, "is not a line of Graphite: path number time")
        times = found.texts("time")
        times = pc.if_else(pc.match_substring_regex(times, r"^\d+$"), times, None)
        arrays = [
            found.texts("path"),
            pc.utf8_lower(found.texts("number")).cast(pa.float64()),
            instants(times, "s"),
            maps(found.present("tags"), lambda text: dict(one.split("=", 1) for one in text[1:].split(";"))),
        ]
        return Columns(arrays, found.failed)

    def write(self, rows: Given) -> pa.StringArray:
        tags = rows.pairs("tags", lambda keys, items: concat(";", keys, "=", items), "")
        path = concat(rows.needed("path"), tags)
        rows.refuse(path, pc.match_substring_regex(path, r"[ \t\n\f\r]"), "A path and its tags have no blanks.")
        times = pc.fill_null(rows.since_1970("time", "s"), "-1")
        return concat(path, " ", rows.needed("number"), " ", times)


# StatsD: name:value|kind|@rate

_STATSD = rf"(?P<name>[^:|@\s]+):(?P<text>[^|\n]+)\|(?P<kind>c|g|ms|h|s|m)(?:\|@(?P<rate>{_NUMBER}))?"


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
        good = pc.or_(is_set, is_number)
        failed = dict(found.failed)
        if not pc.all(good).as_py():
            bad = found.rows[~good.to_numpy(zero_copy_only=False)].tolist()
            failed |= dict.fromkeys(bad, "is not a metric of StatsD: its value is not a number")
        names, rates = found.texts("name").filter(good), found.present("rate").filter(good)
        kinds, texts, is_set = kinds.filter(good), texts.filter(good), is_set.filter(good)
        numbers = pc.if_else(is_set, None, texts).cast(pa.float64())
        return Columns([names, kinds, numbers, texts, rates.cast(pa.float64())], failed)

    def write(self, rows: Given) -> pa.StringArray:
        text = rows.complete("number", pc.coalesce(rows.texts("text"), rows.texts("number")))
        rate = optional("|@", rows.texts("rate"))
        return rows.one_line(concat(rows.needed("name"), ":", text, "|", rows.needed("kind"), rate))


# DogStatsD: name:value:value|kind|@rate|#tags|…   _e{…}:title|text|…   _sc|name|status|…

_PLAIN_NUMBER = _NUMBER.removeprefix("[+-]?")
_PLAIN_DOGSTATSD = (
    rf"(?P<name>[^:|{{\r\n]+):(?P<number>-?{_PLAIN_NUMBER})\|(?P<kind>c|g|ms|h|d|m)"
    rf"(?:\|@(?P<rate>{_PLAIN_NUMBER}))?(?:\|#(?P<tags>[^|\r\n]*))?"
)
_NUMBERS = Kind("array", of=(DOUBLE,))
_KINDS = frozenset(("c", "g", "ms", "h", "s", "d", "m"))
_EVENT = re.compile(r"_e\{(\d{1,6}),(\d{1,6})\}:", re.DOTALL)
_LINE_END = re.compile(r"\r?\n\Z")
_TIME_PART = re.compile(rf"T{_DIGITS}", re.ASCII)
"""The only part with a value and without a colon."""
_NAMED_PART = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*):")
IS_NUMBER = re.compile(_NUMBER)


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
        numbers = found.texts("number").cast(pa.float64())
        count, empty = len(numbers), pa.array([[]], arrow_type(TAGS))
        arrays = [
            found.texts("kind"),
            found.texts("name"),
            pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), numbers, arrow_type(_NUMBERS)),
            pa.nulls(count, pa.string()),
            found.present("rate").cast(pa.float64()),
            maps(found.present("tags"), _dog_tags),
            empty.take(pa.array(np.zeros(count, np.int64))),
        ]
        parts = [(Columns(arrays), found.rows)]
        if found.failed:
            left = np.array(sorted(found.failed))
            parts.append(decoded_rows(values, left, lambda of: row_by_row(of, _dogstatsd, self.of)))
        return merged(parts, {})

    def write(self, rows: Given) -> pa.StringArray:
        kind, name, text = rows.needed("kind"), rows.needed("name"), rows.texts("text")
        is_event, is_check = pc.equal(kind, "event"), pc.equal(kind, "check")
        values = pc.coalesce(rows.elements("numbers", ":"), text)
        rows.complete("text", pc.if_else(is_event, "", pc.if_else(is_check, text, values)))
        head = concat(name, ":", values, "|", kind)
        if pc.any(is_check).as_py():
            head = pc.if_else(is_check, concat("_sc|", name, "|", text), head)
        if pc.any(is_event).as_py():
            head = pc.if_else(is_event, _event_head(name, pc.fill_null(text, "")), head)
        more, last = _attributes(rows.column("attributes"))
        tags = rows.pairs(
            "tags", lambda keys, items: pc.if_else(pc.equal(items, ""), keys, concat(keys, ":", items)), ","
        )
        shown_tags = pc.if_else(pc.equal(tags, ""), "", concat("|#", tags))
        return rows.one_line(concat(head, optional("|@", rows.texts("rate")), more, shown_tags, last))


def _event_head(title: pa.StringArray, text: pa.StringArray) -> pa.StringArray:
    title, text = (pc.replace_substring(each, "\n", "\\n") for each in (title, text))
    sizes = [pc.binary_length(each).cast(pa.string()) for each in (title, text)]
    return concat("_e{", sizes[0], ",", sizes[1], "}:", title, "|", text)


def _attributes(column: pa.Array) -> tuple[pa.StringArray, pa.StringArray]:
    """Those before the tags, and the message, which is the last part. Few rows have any."""
    more, last = [""] * len(column), [""] * len(column)
    for row, given in enumerate(python_values(column)):
        for key, value in (given or {}).items():
            if key == "m":
                last[row] = f"|m:{value}"
            else:
                more[row] += f"|T{value}" if key == "T" else f"|{key}:{value}"
    return pa.array(more, pa.string()), pa.array(last, pa.string())


def _dogstatsd(value: bytes) -> tuple[Any, ...]:
    try:
        line = _LINE_END.sub("", value.decode())
    except UnicodeDecodeError:
        raise Misfit("is not valid UTF-8") from None
    if line.startswith("_e{"):
        return _dog_event(line)
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
    return (parts[0], name, [*map(float, values)], None, *_more(parts[1:]))


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
        if part.startswith("@") and IS_NUMBER.fullmatch(part, 1):
            rate = float(part[1:])
        elif part.startswith("#"):
            tags |= _dog_tags(part[1:])
        elif _TIME_PART.fullmatch(part):
            attributes["T"] = part[1:]
        elif found := _NAMED_PART.match(part):
            attributes[found[1]] = part[found.end() :]
        elif part:
            raise Misfit(f"has the unknown part {part[:40]!r}")
    return rate, [*tags.items()], [*attributes.items()]


def _dog_tags(text: str) -> dict[str, str]:
    pairs = (tag.partition(":") for tag in text.split(",") if tag)
    return {key: value for key, _, value in pairs}
