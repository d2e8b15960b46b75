"""logfmt: words of a line, like `level=info msg="two words"`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Fields, Kind
from penstock.spark.codecs.api import Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import is_binary, plain_texts, valid_texts
from penstock.spark.codecs.by_json import JSON, ByJson, decoded_by_json
from penstock.spark.codecs.codec import CODECS, DATA
from penstock.spark.codecs.fixed_columns import concat, decoded_rows, escaped, merged, optional, row_by_row
from penstock.spark.codecs.json_writer import is_json, joined, map_parts
from penstock.spark.codecs.pair_kernel import NOT_PLAIN, bytes_and_offsets, logfmt_pairs, texts_at
from penstock.spark.codecs.scalars import Misfit

_BLANKS = " \t\n\f\r"
_PAIR = re.compile(
    rf'[{_BLANKS}]*+([^{_BLANKS}="]++)(?:=(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^{_BLANKS}"]*+)))?(?=[{_BLANKS}]|\Z)',
    re.DOTALL,
)
"""The parts of quoted values are possessive: others would take a hundred bytes of memory for each character."""
_BARE = re.compile(rf'[^{_BLANKS}="\\]+')
_BARE_TEXT = rf"\A{_BARE.pattern}\z"
_NAME = re.compile(rf'[^{_BLANKS}="]+')
_NAME_TEXT = rf"\A{_NAME.pattern}\z"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "t": "\t", "r": "\r"}
_MAP = (Field(DATA, Kind("map", of=(STRING, STRING))),)
_NOT_UTF8 = "is not valid UTF-8"


class Logfmt(ByJson):
    """Words of a line. One without `=` is true."""

    about = CODECS["logfmt"]
    title = "logfmt"

    def fields(self, schema: Fields | None) -> Fields:
        if schema is None:
            return _MAP
        for field in schema:
            if field.kind.name in ("array", "map", "struct", "variant", "binary"):
                raise RequestError(
                    f"logfmt cannot decode `{field.name}`, which is {field.kind}", "Declare it as STRING."
                )
        return JSON.fields(schema)

    def decoder(self, schema: Fields | None) -> Decode:
        self.fields(schema)
        if schema is None:
            return _maps_of_words
        decode, bare = JSON.decoder(schema), {field.name for field in schema if field.kind.name not in _AS_TEXT}
        return lambda values: decoded_by_json(values, lambda value: _typed_words(value, bare), decode, "logfmt")

    def reader(self) -> Callable[[bytes], bytes]:
        return lambda value: msgspec.json.encode(_words(value))

    def encoder(self, columns: pa.Schema) -> Encode:
        if columns.names == [DATA] and pa.types.is_map(columns[0].type) and not _is_odd(columns[0].type.item_field):
            return lambda rows: _lines_of_maps(rows.column(0)).cast(pa.binary())
        if any(map(_is_odd, columns)) or not columns.names:
            return super().encoder(columns)
        _check_names(pa.array(columns.names, pa.string()))
        return lambda rows: _lines_of_columns(rows).cast(pa.binary())

    def writer(self) -> Callable[[bytes], bytes]:
        return _line


_AS_TEXT = ("string", "char", "varchar", "timestamp", "timestamp_ntz", "date", "decimal")
"""Types that JSON has as strings: other values stand without quotes."""

_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false")


def _maps_of_words(values: pa.BinaryArray) -> Columns:
    """Plain lines at once, and others one by one."""
    texts, rows, bad = valid_texts(values)
    data, offsets = bytes_and_offsets(texts)
    true_at = len(data)
    data = np.concatenate((data, np.frombuffer(b"true", np.uint8)))
    counts = np.empty(len(texts), np.int64)
    # A pair follows a blank, or begins its line.
    room = np.count_nonzero(data[offsets[0] : offsets[-1]] <= ord(" ")) + len(texts) + 1
    places = [np.empty(room, np.int64) for _ in range(4)]
    found = logfmt_pairs(data, offsets, true_at, counts, *places)
    keys, key_ends, items, item_ends = (of[:found] for of in places)
    is_plain = counts != NOT_PLAIN
    ends = np.concatenate(([0], np.cumsum(counts[is_plain]))).astype(np.int32)
    maps = pa.MapArray.from_arrays(pa.array(ends), texts_at(data, keys, key_ends), texts_at(data, items, item_ends))
    parts = [(Columns([maps]), rows[is_plain])]
    if not is_plain.all():
        parts.append(decoded_rows(values, rows[~is_plain], _maps_one_by_one))
    return merged(parts, dict.fromkeys(bad, _NOT_UTF8))


def _maps_one_by_one(values: pa.BinaryArray) -> Columns:
    return row_by_row(values, lambda value: ([*_words(value).items()],), _MAP)


def _words(value: bytes) -> dict[str, str]:
    try:
        text = value.decode().rstrip(_BLANKS)
    except UnicodeDecodeError:
        raise Misfit(_NOT_UTF8) from None
    found, at = {}, 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise Misfit(f"is not valid logfmt at character {at + 1}")
        key, quoted, plain = match.groups()
        if quoted is not None:
            found[key] = _ESCAPE.sub(lambda escape: _MEANT.get(escape[1], escape[1]), quoted)
        else:
            found[key] = "true" if plain is None else plain
        at = match.end()
    return found


def _typed_words(value: bytes, bare: set[str]) -> bytes:
    words: dict[str, Any] = {}
    for key, text in _words(value).items():
        words[key] = msgspec.Raw(text.encode()) if key in bare and _SCALAR.fullmatch(text) else text
        if key in bare and not text:
            words[key] = None
    return msgspec.json.encode(words)


def _is_odd(field: pa.Field) -> bool:
    """Whether its values are no plain ones: JSON decides what becomes of them."""
    return bool(pa.types.is_nested(field.type)) or is_binary(field.type) or is_json(field)


def _lines_of_maps(column: pa.MapArray) -> pa.StringArray:
    if column.null_count:
        raise RequestError("logfmt writes plain columns, or one map `data`", "Select plain columns.")
    lists, keys, items = map_parts(column)
    _check_names(keys)
    words = optional(" ", keys, "=", _shown(plain_texts(items, DATA, "logfmt")))
    return pc.utf8_slice_codeunits(joined(lists, words, between=""), 1)


def _lines_of_columns(rows: pa.RecordBatch) -> pa.StringArray:
    named = zip(rows.schema.names, rows.columns, strict=True)
    words = [optional(f" {name}=", _shown(plain_texts(column, name, "logfmt"))) for name, column in named]
    return pc.utf8_slice_codeunits(concat(*words), 1)


def _check_names(names: pa.StringArray) -> None:
    if (at := pc.index(pc.match_substring_regex(names, _NAME_TEXT), value=False).as_py()) >= 0:
        raise _bad_name(names[at].as_py())


def _shown(texts: pa.StringArray) -> pa.StringArray:
    """In quotes if they are no words."""
    is_bare = pc.match_substring_regex(texts, _BARE_TEXT)
    if pc.all(is_bare).as_py():
        return texts
    inside = pc.replace_substring(pc.replace_substring(escaped(texts, '\\"'), "\n", "\\n"), "\r", "\\r")
    return pc.if_else(is_bare, texts, concat('"', inside, '"'))


def _bad_name(name: str) -> RequestError:
    return RequestError(f"logfmt cannot write the name {name!r}", "Use a name without blanks, quotes and `=`.")


def _line(text: bytes) -> bytes:
    document = msgspec.json.decode(text)
    if isinstance(document, dict) and [*document] == [DATA] and isinstance(document[DATA], dict):
        document = document[DATA]
    if not isinstance(document, dict) or any(isinstance(each, dict | list) for each in document.values()):
        raise RequestError("logfmt writes plain columns, or one map `data`", "Select plain columns.")
    return " ".join(_word(key, each) for key, each in document.items() if each is not None).encode()


def _word(key: str, value: Any) -> str:
    if not _NAME.fullmatch(key):
        raise _bad_name(key)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if _BARE.fullmatch(text):
        return f"{key}={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{key}="{escaped}"'
