"""InfluxDB's line protocol: measurement,tag=value field=value time"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, VARIANT, Field
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.arrow_texts import is_text, valid_texts, without_empty
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.fixed_columns import (
    TAGS,
    TIMESTAMP,
    FixedColumns,
    Given,
    concat,
    decoded_rows,
    escaped,
    instants,
    maps,
    merged,
    optional,
)
from penstock.spark.codecs.metric_lines import IS_NUMBER
from penstock.spark.codecs.packing import python_values
from penstock.spark.codecs.pair_kernel import NOT_PLAIN, bytes_and_offsets, influx_lines, texts_at, texts_of
from penstock.spark.codecs.patterns import NOT_UTF8, extract
from penstock.spark.codecs.scalars import Misfit

_ESCAPE = r"\\[^\t\n\f\r]"
_KEY = rf"(?:[^ \t\n\f\r,=\\]|{_ESCAPE})+"
_FIELD = rf'{_KEY}=(?:"(?:[^"\\]|\\.)*"|[^ \t\n\f\r,"]+)'
_INFLUX = (
    rf"(?P<measurement>(?:[^\s,\\#]|{_ESCAPE})(?:[^\s,\\]|{_ESCAPE})*)(?P<tags>(?:,{_KEY}={_KEY})*) +"
    rf"(?P<fields>{_FIELD}(?:,{_FIELD})*)(?: +(?P<time>-?(?:TIME)))?\s*"
)
_TIMES = {"ns": r"\d{1,18}|[1-8]\d{18}|9[01]\d{17}", "us": r"\d{1,17}", "ms": r"\d{1,14}", "s": r"\d{1,11}"}
"""Those that 64 bits of microseconds, or nanoseconds, have room for."""
_PART = rf"(?:[^ \t\n\f\r,=\\]++|{_ESCAPE})++"
"""As _KEY. Possessive, unlike in patterns of RE2: Python would take a hundred bytes of memory for each character."""
_TAG = re.compile(rf",({_PART})=({_PART})", re.DOTALL)
_ONE_FIELD = re.compile(rf'({_PART})=(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^ \t\n\f\r,"]++))(?:,|\Z)', re.DOTALL)
_UNESCAPED = re.compile(r"\\([,= \\])")
_IN_TEXT = re.compile(r'\\(["\\])')
_TRUE, _FALSE = ("t", "T", "true", "True", "TRUE"), ("f", "F", "false", "False", "FALSE")
_INTEGER = re.compile(r"-?[0-9]{1,20}[iu]")
_INTEGERS_END = {"i": 1 << 63, "u": 1 << 64}
_WRITABLE = re.compile(r"[^\t\n\f\r]+")
"""A name, or the value of a tag. Of blanks, only spaces can be escaped."""
_PLAIN_DIGITS = {"ns": 19, "us": 17, "ms": 14, "s": 11}


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

    def write(self, rows: Given) -> pa.StringArray:
        names = escaped(_named(rows, rows.needed("measurement")), "\\, ")
        rows.refuse(names, pc.starts_with(names, "#"), "The line would be a comment.")
        tags = rows.pairs("tags", lambda keys, items: concat(",", _key(rows, keys), "=", _key(rows, items)), "")
        fields = pa.array([*map(_written_fields, _documents(rows))], pa.string())
        times = rows.since_1970("time", self.options.precision)
        times = rows.fitting(times, f"-?(?:{_TIMES[self.options.precision]})", "The time is out of range.")
        return concat(names, tags, " ", fields, optional(" ", times))


def _key(rows: Given, texts: pa.StringArray) -> pa.StringArray:
    return escaped(_named(rows, texts), "\\,= ")


def _named(rows: Given, names: pa.StringArray) -> pa.StringArray:
    return rows.fitting(names, _WRITABLE.pattern, "Line protocol cannot represent this name.")


def _documents(rows: Given) -> list[dict[str, Any]]:
    """The fields of each row."""
    column = rows.column("fields")
    rows.complete("fields", column)
    values = python_values(column)
    return [msgspec.json.decode(one) for one in values] if is_text(column.type) else values


def _written_fields(fields: dict[str, Any]) -> str:
    written = [f"{_escaped(key)}={_influx_value(each)}" for key, each in fields.items() if each is not None]
    if not written:
        raise RequestError("influx cannot write a row without fields", "Set one, or drop the row.")
    return ",".join(written)


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
        if -(1 << 63) <= (number := int(text[:-1])) < _INTEGERS_END[text[-1]]:
            return number
    elif IS_NUMBER.fullmatch(text) and math.isfinite(double := float(text)):
        return double
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Misfit(f"is not a line of InfluxDB: {text[:40]!r} is not a value")


_SPECIAL = str.maketrans({sign: f"\\{sign}" for sign in "\\,= "})


def _escaped(name: str) -> str:
    if not _WRITABLE.fullmatch(name):
        raise RequestError(f"influx cannot write {name!r}", "Line protocol cannot represent this name.")
    return name.translate(_SPECIAL)


def _influx_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() if -(1 << 63) <= value < 1 << 64:
            return f"{value}i" if value < 1 << 63 else f"{value}u"
        case float() if math.isfinite(value):
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
    raise RequestError(
        f"influx cannot write the field {value!r}",
        "Fields must be texts, booleans, whole numbers of 64 bits or finite numbers.",
    )
