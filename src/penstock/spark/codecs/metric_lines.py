"""Metrics as lines of text: Graphite, StatsD, DogStatsD, InfluxDB. An event is one line: `split` cuts packets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, VARIANT, Field, Kind
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.arrow_texts import valid_texts
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.fixed_columns import (
    DOUBLE,
    TAGS,
    TIMESTAMP,
    FixedColumns,
    decoded_rows,
    instants,
    maps,
    merged,
    micros_of,
    row_by_row,
    shown,
)
from penstock.spark.codecs.json_writer import is_json
from penstock.spark.codecs.pair_kernel import NOT_PLAIN, bytes_and_offsets, influx_lines, texts_at, texts_of
from penstock.spark.codecs.patterns import NOT_UTF8, extract, without_empty
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

    def write(self, row: Mapping[str, Any]) -> str:
        tags = "".join(f";{key}={value}" for key, value in (row["tags"] or {}).items())
        path = self.needed(row, "path") + tags
        if re.search(r"[ \t\n\f\r]", path):
            raise RequestError(f"graphite cannot write the path {path!r}", "A path and its tags have no blanks.")
        time = "-1" if row["time"] is None else str(micros_of(row["time"]) // 1_000_000)
        return f"{path} {shown(self.needed(row, 'number'))} {time}"


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

    def write(self, row: Mapping[str, Any]) -> str:
        text = row["text"] if row["text"] is not None else shown(self.needed(row, "number"))
        rate = "" if row["rate"] is None else f"|@{shown(row['rate'])}"
        return _checked_line(f"{self.needed(row, 'name')}:{text}|{self.needed(row, 'kind')}{rate}", "statsd")


def _checked_line(line: str, codec: str) -> str:
    if "\n" in line:
        raise RequestError(f"{codec} cannot write {line[:100]!r}", "It has no form for line ends.")
    return line


# DogStatsD: name:value:value|kind|@rate|#tags|…   _e{…}:title|text|…   _sc|name|status|…

_KINDS = frozenset(("c", "g", "ms", "h", "s", "d", "m"))
_EVENT = re.compile(r"_e\{(\d{1,6}),(\d{1,6})\}:", re.DOTALL)
_IS_NUMBER = re.compile(_NUMBER)


class DogStatsd(FixedColumns):
    """`kind` is that of StatsD, `event`, or `check`. `text` is the member of a set, the text of an event, or the status
    of a check. `attributes` has the other parts by their letters: `c`, `d`, `e`, `h`, `k`, `m`, `p`, `s`, `t`, `T`.
    """

    about = CODECS["dogstatsd"]
    of = (
        Field("kind", STRING),
        Field("name", STRING),
        Field("numbers", Kind("array", of=(DOUBLE,))),
        Field("text", STRING),
        Field("rate", DOUBLE),
        Field("tags", TAGS),
        Field("attributes", TAGS),
    )

    def decode(self, values: pa.BinaryArray) -> Columns:
        return row_by_row(values, _dogstatsd, self.of)

    def write(self, row: Mapping[str, Any]) -> str:
        kind, name = self.needed(row, "kind"), self.needed(row, "name")
        match kind:
            case "event":
                title, text = name.replace("\n", "\\n"), (row["text"] or "").replace("\n", "\\n")
                head = f"_e{{{len(title.encode())},{len(text.encode())}}}:{title}|{text}"
            case "check":
                head = f"_sc|{name}|{self.needed(row, 'text')}"
            case _:
                values = [shown(one) for one in row["numbers"]] if row["numbers"] else [self.needed(row, "text")]
                head = f"{name}:{':'.join(values)}|{kind}"
        rate = "" if row["rate"] is None else f"|@{shown(row['rate'])}"
        tags = [key if value == "" else f"{key}:{value}" for key, value in (row["tags"] or {}).items()]
        attributes = dict(row["attributes"] or {})
        message = attributes.pop("m", None)
        more = "".join(f"|{key}:{value}" for key, value in attributes.items())
        last = "" if message is None else f"|m:{message}"
        return _checked_line(f"{head}{rate}{more}{'|#' + ','.join(tags) if tags else ''}{last}", "dogstatsd")


def _dogstatsd(value: bytes) -> tuple[Any, ...]:
    try:
        line = value.decode().removesuffix("\n")
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
    if not all(map(_IS_NUMBER.fullmatch, values)):
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
        if part.startswith("@") and _IS_NUMBER.fullmatch(part, 1):
            rate = float(part[1:])
        elif part.startswith("#"):
            for tag in filter(None, part[1:].split(",")):
                key, _, value = tag.partition(":")
                tags[key] = value
        elif len(part) > 1 and part[1] == ":":
            attributes[part[0]] = part[2:]
        elif part:
            raise Misfit(f"has the unknown part {part[:40]!r}")
    return rate, [*tags.items()], [*attributes.items()]


# InfluxDB line protocol: measurement,tag=value field=value time

_KEY = r"(?:[^ \t\n\f\r,=\\]|\\.)+"
_FIELD = rf'{_KEY}=(?:"(?:[^"\\]|\\.)*"|[^ \t\n\f\r,"]+)'
_INFLUX = (
    rf"(?P<measurement>(?:[^\s,\\#]|\\.)(?:[^\s,\\]|\\.)*)(?P<tags>(?:,{_KEY}={_KEY})*) +"
    rf"(?P<fields>{_FIELD}(?:,{_FIELD})*)(?: +(?P<time>-?(?:TIME)))?\s*"
)
_TIMES = {"ns": r"\d{1,18}|[1-8]\d{18}|9[01]\d{17}", "us": r"\d{1,17}", "ms": r"\d{1,14}", "s": r"\d{1,11}"}
"""Those that 64 bits of microseconds, or nanoseconds, have room for."""
_PART = r"(?:[^ \t\n\f\r,=\\]++|\\.)++"
"""As _KEY. Possessive, unlike in patterns of RE2: Python would take a hundred bytes of memory for each character."""
_TAG = re.compile(rf",({_PART})=({_PART})", re.DOTALL)
_ONE_FIELD = re.compile(rf'({_PART})=(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^ \t\n\f\r,"]++))(?:,|\Z)', re.DOTALL)
_UNESCAPED = re.compile(r"\\([,= \\])")
_IN_TEXT = re.compile(r'\\(["\\])')
_TRUE, _FALSE = ("t", "T", "true", "True", "TRUE"), ("f", "F", "false", "False", "FALSE")
_INTEGER = re.compile(r"-?\d{1,19}[iu]")
_PLAIN_DIGITS = {"ns": 19, "us": 17, "ms": 14, "s": 11}
_FRACTIONS = {"ns": (1, 1000), "us": (1, 1), "ms": (1000, 1), "s": (1_000_000, 1)}


class Influx(FixedColumns):
    """`fields` is a VARIANT: numbers, texts and booleans. A timestamp in nanoseconds keeps its microseconds."""

    about = CODECS["influx"]
    of = (Field("measurement", STRING), Field("tags", TAGS), Field("fields", VARIANT), Field("time", TIMESTAMP))

    def decode(self, values: pa.BinaryArray) -> Columns:
        """Plain lines at once, and others by patterns."""
        texts, rows, bad = valid_texts(values)
        data, offsets = bytes_and_offsets(texts)
        places = tuple(np.empty(len(texts), np.int64) for _ in range(4))
        ends, out = np.empty(len(texts) + 1, np.int64), np.empty(3 * len(data) + 2 * len(texts) + 1, np.uint8)
        influx_lines(data, offsets, _PLAIN_DIGITS[self.options.precision], places, ends, out)
        is_plain = places[0] != NOT_PLAIN
        names, tags, times, time_ends = (of[is_plain] for of in places)
        documents = texts_of(out, ends)
        arrays = [
            texts_at(data, offsets[:-1][is_plain], names),
            maps(without_empty(texts_at(data, names, tags)), _influx_tags),
            documents if is_plain.all() else documents.filter(pa.array(is_plain)),
            instants(without_empty(texts_at(data, times, time_ends)), self.options.precision),
        ]
        parts = [(Columns(arrays), rows[is_plain])]
        if not is_plain.all():
            parts.append(decoded_rows(values, rows[~is_plain], self._by_pattern))
        return merged(parts, dict.fromkeys(bad, NOT_UTF8))

    def _by_pattern(self, values: pa.BinaryArray) -> Columns:
        pattern = _INFLUX.replace("TIME", _TIMES[self.options.precision])
        found = extract(values, pattern, "is not a line of InfluxDB: measurement,tag=value field=value time")
        documents: list[str | None] = []
        bad: dict[int, str] = {}
        for row, text in enumerate(found.texts("fields").to_pylist()):
            try:
                documents.append(_influx_fields(text))
            except Misfit as error:
                documents.append(None)
                bad[int(found.rows[row])] = str(error)
        arrays = [
            pa.array([_unescaped(text) for text in found.texts("measurement").to_pylist()], pa.string()),
            maps(found.present("tags"), _influx_tags),
            pa.array(documents, pa.string()),
            instants(found.present("time"), self.options.precision),
        ]
        if bad:
            good = arrays[2].is_valid()
            arrays = [array.filter(good) for array in arrays]
        return Columns(arrays, found.failed | bad)

    def encoder(self, columns: pa.Schema) -> Any:
        encode = super().encoder(columns)
        is_text = "fields" in columns.names and is_json(columns.field("fields"))
        self._is_text = is_text or ("fields" in columns.names and pa.types.is_string(columns.field("fields").type))
        return encode

    def write(self, row: Mapping[str, Any]) -> str:
        given = self.needed(row, "fields")
        fields = msgspec.json.decode(given) if self._is_text else given
        written = [f"{_escaped(key, ',= ')}={_influx_value(each)}" for key, each in fields.items() if each is not None]
        if not written:
            raise RequestError("influx cannot write a row without fields", "Set one, or drop the row.")
        tags = "".join(f",{_escaped(key, ',= ')}={_escaped(each, ',= ')}" for key, each in (row["tags"] or {}).items())
        times, parts = _FRACTIONS[self.options.precision]
        time = "" if row["time"] is None else f" {micros_of(row['time']) * parts // times}"
        return f"{_escaped(self.needed(row, 'measurement'), ', ')}{tags} {','.join(written)}{time}"


def _unescaped(text: str) -> str:
    return _UNESCAPED.sub(r"\1", text) if "\\" in text else text


def _influx_tags(text: str) -> dict[str, str]:
    return {_unescaped(key): _unescaped(value) for key, value in _TAG.findall(text)}


def _influx_fields(text: str) -> str:
    found: dict[str, Any] = {}
    for match in _ONE_FIELD.finditer(text):
        key, quoted, plain = match.groups()
        found[_unescaped(key)] = _IN_TEXT.sub(r"\1", quoted) if plain is None else _influx_scalar(plain)
    return msgspec.json.encode(found).decode()


def _influx_scalar(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text[:-1])
    if _IS_NUMBER.fullmatch(text):
        return float(text)
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Misfit(f"is not a line of InfluxDB: {text[:40]!r} is not a value")


def _escaped(text: str, special: str) -> str:
    found = text.replace("\\", "\\\\")
    for character in special:
        found = found.replace(character, f"\\{character}")
    if not text or "\n" in text:
        raise RequestError(f"influx cannot write the name {text!r}", "It has no form for it.")
    return found


def _influx_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}i"
        case float():
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
    raise RequestError(f"influx cannot write the field {value!r}", "Fields are numbers, texts and booleans.")
