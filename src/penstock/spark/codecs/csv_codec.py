"""CSV: one record for each event, as in RFC 4180, without a header."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from penstock.core.errors import RequestError
from penstock.core.kinds import INTEGERS, TEXTS, Field, Fields, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode, check_decoded
from penstock.spark.codecs.arrow_texts import is_binary, is_text, plain_texts, valid_texts, without_line_ends
from penstock.spark.codecs.codec import CODECS
from penstock.spark.codecs.codec_options import CsvOptions
from penstock.spark.codecs.columns import all_alike
from penstock.spark.codecs.json_writer import is_json
from penstock.spark.codecs.scalars import unquoted
from penstock.spark.codecs.variants import FOUND_CHARS

_UNREADABLE = ("array", "map", "struct", "variant", "binary", "void")


class Csv(Codec):
    about = CODECS["csv"]

    def fields(self, schema: Fields | None) -> Fields:
        check_decoded(self, schema)
        assert schema is not None
        for field in schema:
            if field.kind.name in _UNREADABLE:
                raise RequestError(
                    f"csv cannot decode `{field.name}`, which is {field.kind}",
                    "Declare it as STRING, and convert it in the function.",
                )
            arrow_type(field.kind)
        return schema

    def decoder(self, schema: Fields | None) -> Decode:
        return _Records(self.fields(schema), self.options).decode

    def encoder(self, columns: pa.Schema) -> Encode:
        for field in columns:
            if pa.types.is_nested(field.type) or is_binary(field.type) or is_json(field):
                raise RequestError(
                    f"csv cannot write `{field.name}`, which is {'variant' if is_json(field) else field.type}",
                    "Select plain columns, or declare them in the schema of the connector that it comes from.",
                )
        return lambda rows: _records(rows, self.options)


class _Records:
    def __init__(self, schema: Fields, options: CsvOptions) -> None:
        self._schema = schema
        self._options = options
        quote, delimiter, escape = map(re.escape, (options.quote, options.delimiter, options.escape))
        quoted = f"{quote}(?:[^{quote}{escape}]|{quote}{quote}{f'|{escape}(?s:.)' if escape else ''})*{quote}"
        plain = rf"[^{quote}{delimiter}{escape}\r\n]"
        plain = rf"(?:{plain}|{escape}[^\r\n])*" if escape else f"{plain}*"
        field = f"(?:{quoted}|{plain})" if quote else plain
        self._record = f"^{field}(?:{delimiter}{field})*$"
        self._protected = "|".join(filter(None, (quote and quoted, escape and f"{escape}(?s:.)")))
        """In which a delimiter is part of a field; empty if it never is."""

    def decode(self, values: pa.BinaryArray) -> Columns:
        texts, rows, undecoded = valid_texts(values)
        failed = dict.fromkeys(undecoded, "is not valid CSV")
        records = without_line_ends(texts)
        is_record = self._are_records(records)
        if not pc.all(is_record).as_py():
            reason = f"is not one CSV record of {len(self._schema)} columns"
            failed |= dict.fromkeys(rows[~is_record.to_numpy(zero_copy_only=False)].tolist(), reason)
            rows, records = rows[is_record.to_numpy(zero_copy_only=False)], records.filter(is_record)
        arrays, bad = self._columns(_fields(records, len(self._schema), self._options))
        return Columns(arrays, failed | {int(rows[row]): reason for row, reason in bad.items()})

    def _are_records(self, records: pa.StringArray) -> pa.BooleanArray:
        count = len(self._schema)
        open_text = pc.replace_substring_regex(records, self._protected, "") if self._protected else records
        commas = pc.count_substring(open_text, self._options.delimiter)
        found = pc.and_(pc.match_substring_regex(records, self._record), pc.equal(commas, count - 1))
        return pc.and_(found, pc.not_equal(records, "")) if count > 1 else found

    def _columns(self, texts: Sequence[pa.StringArray]) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns without bad rows, and the reasons of those: the first field that does not fit."""
        found: list[pa.Array] = []
        bad: dict[int, str] = {}
        for field, array in zip(self._schema, texts, strict=True):
            values, wrong = _column(field, array)
            found.append(values)
            bad = wrong | bad
        if bad:
            good = pa.array(np.setdiff1d(np.arange(len(found[0])), [*bad]))
            found = [array.take(good) for array in found]
        return found, bad


def _fields(records: pa.StringArray, count: int, options: CsvOptions) -> list[pa.StringArray]:
    """The fields of valid records as texts; null for an empty one without quotes."""
    if not len(records):
        return [pa.array([], pa.string())] * count
    names = [str(number) for number in range(count)]
    ends = pa.array([0, len(records)], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, pc.binary_join_element_wise(records, "\n", "")), "")
    joined = joined[0].as_buffer()
    table = pa_csv.read_csv(
        pa.BufferReader(joined),
        pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(joined) + 1),
        pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote or False,
            escape_char=options.escape or False,
            newlines_in_values=True,
            ignore_empty_lines=False,
        ),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[options.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [table.column(name).combine_chunks() for name in names]


def _column(field: Field, texts: pa.StringArray) -> tuple[pa.Array, dict[int, str]]:
    """With nulls for the rows that are bad."""
    try:
        found = _at_once(field, texts)
    except (pa.ArrowException, ValueError):
        found, bad = _one_by_one(field, texts.to_pylist())
    else:
        bad = {}
    if not field.nullable and found.null_count > len(bad):
        missing = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False)).tolist()
        bad |= dict.fromkeys(missing, _reason(field, "nothing"))
    return found, bad


def _at_once(field: Field, texts: pa.StringArray) -> pa.Array:
    """Raises ValueError if a text needs a closer look: Arrow also takes some that are not values here."""
    if field.kind.name in TEXTS:
        return texts
    if field.kind.name in INTEGERS and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py():
        raise ValueError("hexadecimal")
    if field.kind.name in INTEGERS:
        return texts.cast(arrow_type(field.kind))
    if field.kind.name == "double" and not pc.any(pc.match_substring_regex(texts, "[^0-9.+-]")).as_py():
        return texts.cast(pa.float64())
    if (
        field.kind.name in ("date", "timestamp", "timestamp_ntz")
        and (found := all_alike(texts, field.kind)) is not None
    ):
        return found
    raise ValueError("value by value")


def _one_by_one(field: Field, texts: Sequence[str | None]) -> tuple[pa.Array, dict[int, str]]:
    read, values, bad = unquoted(field.kind), [], dict[int, str]()
    for row, text in enumerate(texts):
        try:
            values.append(None if text is None else read(text))
        except ValueError:
            values.append(None)
            bad[row] = _reason(field, text or "")
    return pa.array(values, arrow_type(field.kind)), bad


def _reason(field: Field, found: str) -> str:
    return f"has the wrong type at `{field.name}`: expected {field.kind}, found {found[:FOUND_CHARS]}".rstrip()


def _records(rows: pa.RecordBatch, options: CsvOptions) -> pa.BinaryArray:
    """The text for null, and quotes for a text that is the same, or empty."""
    texts = [_written(array, name, options) for name, array in zip(rows.schema.names, rows.columns, strict=True)]
    return pc.binary_join_element_wise(*texts, options.delimiter).cast(pa.binary())


def _written(column: pa.Array, name: str, options: CsvOptions) -> pa.StringArray:
    texts = plain_texts(column, name, "csv")
    is_usual = options.delimiter in ",;|\t" and not options.null
    is_usual = is_usual and all(one not in "+-.:0123456789" for one in (options.quote, options.escape) if one)
    if is_text(column.type) or not is_usual:
        texts = _quoted(texts, options) if options.quote else _unquoted(texts, options)
    return pc.fill_null(texts, options.null)


def _quoted(texts: pa.StringArray, options: CsvOptions) -> pa.StringArray:
    quote, escape = options.quote, options.escape
    inner = pc.replace_substring(texts, escape, escape * 2) if escape else texts
    inner = pc.replace_substring(inner, quote, (escape or quote) + quote)
    special = rf"[{re.escape(quote)}{re.escape(options.delimiter)}{re.escape(escape)}\r\n]"
    in_quotes = pc.or_(pc.match_substring_regex(texts, special), pc.equal(texts, options.null))
    in_quotes = pc.or_(in_quotes, pc.equal(texts, ""))
    return pc.if_else(in_quotes, pc.binary_join_element_wise(quote, inner, quote, ""), texts)


def _unquoted(texts: pa.StringArray, options: CsvOptions) -> pa.StringArray:
    """Raises RequestError for a text that needs quotes."""
    delimiter, escape = options.delimiter, options.escape
    bad = pc.match_substring_regex(texts, r"[\r\n]" if escape else rf"[{re.escape(delimiter)}\r\n]")
    if options.null:
        bad = pc.or_(bad, pc.equal(texts, options.null))
    if (at := pc.index(bad, value=True).as_py()) >= 0:
        raise RequestError(
            f"csv cannot write {texts[at].as_py()[:FOUND_CHARS]!r} without quotes",
            "Set quote, or escape for delimiters, in codec_config.",
        )
    if not escape:
        return texts
    return pc.replace_substring(pc.replace_substring(texts, escape, escape * 2), delimiter, escape + delimiter)
