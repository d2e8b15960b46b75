"""Blocks of events as Arrow tables: JSON objects by their fields, or the events as they are.

Arrow's own reader parses whole blocks. What it cannot read (maps, JSON in a column of texts, "NaN", base64) goes
through msgspec row by row, which also finds the row to blame.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.connectors.file.sink import lines
from penstock.connectors.lake.schemas import Refused
from penstock.connectors.sink_api import Block
from penstock.core.errors import RequestError
from penstock.protocol.stored.bulk import Bytes
from penstock.protocol.stored.event import NO_TIME

RAW = pa.schema(
    [
        pa.field("message_id", pa.int64()),
        pa.field("event_time", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""The columns of `format: raw`."""

FOUND_CHARACTERS_MAX = 200
"""How much of a reason is shown: it may quote a value."""


class BadRow(RequestError):
    """A row does not fit the columns. The message names it."""


def raw_rows(block: Block) -> pa.Table:
    """In the columns of RAW."""
    sizes = np.diff(np.asarray(block.values.offsets, np.int64))
    ids = block.first_id + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    times = np.asarray(block.times, np.int64)
    event_times = pa.array(times, mask=times == NO_TIME).cast(pa.timestamp("us", "UTC"))
    return pa.table([pa.array(ids), event_times, _binary(block.keys), _binary(block.values)], schema=RAW)


def _binary(column: Bytes) -> pa.Array:
    offsets = pa.py_buffer(np.ascontiguousarray(column.offsets, np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(column), [None, offsets, pa.py_buffer(column.data)]
    ).cast(pa.binary())


def json_rows(block: Block, schema: pa.Schema, first_row: int, *, ignores_unknown: bool) -> pa.Table:
    """In the columns of the schema; a field that an object lacks is null. Raises BadRow, with the row's number in the
    epoch, which has `first_row` rows before the block.
    """
    found = _read_whole(block, schema, ignores_unknown) if _is_plain(schema) else None
    if found is None or _has_bad_null(found):
        found = _RowReader(block, schema, first_row, ignores_unknown).table()
    return found


# A whole block at a time.


@cache
def _is_plain(schema: pa.Schema) -> bool:
    return all(_reads(field.type) or field.type == pa.date32() for field in schema)


def _reads(kind: pa.DataType) -> bool:
    """Whether Arrow reads JSON values of this type as Penstock writes them."""
    if pa.types.is_list(kind):
        return _reads(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_reads(field.type) for field in kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(is_number or pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


@cache
def _wire(schema: pa.Schema) -> pa.Schema:
    """Dates are texts in JSON, which Arrow's reader takes for numbers."""
    return pa.schema([field.with_type(pa.string()) if field.type == pa.date32() else field for field in schema])


def _read_whole(block: Block, schema: pa.Schema, ignores_unknown: bool) -> pa.Table | None:
    """None if a row must be looked at more closely."""
    data = lines(block.values)
    behaviour = "ignore" if ignores_unknown else "error"
    try:
        found = pj.read_json(
            pa.BufferReader(pa.py_buffer(data)),
            pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pj.ParseOptions(
                explicit_schema=_wire(schema), newlines_in_values=True, unexpected_field_behavior=behaviour
            ),
        )
        found = found.cast(schema)
        found.validate(full=True)  # Arrow's reader does not look whether texts are UTF-8
    except (pa.ArrowException, UnicodeDecodeError, ValueError):
        return None
    has_blanks = bool((np.diff(np.asarray(block.values.offsets, np.int64)) == 0).any())
    return found if len(found) == len(block) and not has_blanks else None


def _has_bad_null(table: pa.Table) -> bool:
    return any(not field.nullable and table[field.name].null_count for field in table.schema)


# Row by row.


class _RowReader:
    def __init__(self, block: Block, schema: pa.Schema, first_row: int, ignores_unknown: bool) -> None:
        self._block = block
        self._schema = schema
        self._first_row = first_row
        kind = pa.struct([*schema])
        self._decode = msgspec.json.Decoder(_python_type(kind, strict=not ignores_unknown)).decode
        self._convert = _converter(kind)

    def table(self) -> pa.Table:
        rows = [self._row(number, value) for number, value in enumerate(self._block.values.rows())]
        try:
            return self._table(rows)
        except (pa.ArrowException, ValueError, OverflowError):
            for number, row in enumerate(rows):
                self._try(number, row)
            raise

    def _row(self, number: int, value: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = self._convert(self._decode(value))
        except msgspec.ValidationError as error:
            raise self._bad(number, _reason(str(error))) from None
        except (ValueError, OverflowError) as error:  # msgspec's DecodeError and UnicodeDecodeError are ValueErrors
            raise self._bad(number, f"it is not a valid JSON object: {error}") from None
        for field in self._schema:
            if not field.nullable and row[field.name] is None:
                raise self._bad(number, f"the column {field.name!r} must not be null")
        return row

    def _table(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in self._schema]
        return pa.table(columns, schema=self._schema)

    def _try(self, number: int, row: dict[str, Any]) -> None:
        for field in self._schema:
            try:
                pa.array([row[field.name]], field.type)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise self._bad(number, f"the column {field.name!r} is {field.type}: {error}") from None

    def _where(self, number: int) -> str:
        offsets = self._block.values.offsets
        message_id = self._block.first_id + int(offsets[number]) - int(offsets[0])
        return f"message {message_id} (row {self._first_row + number + 1} of the epoch)"

    def _bad(self, number: int, reason: str) -> BadRow:
        return BadRow(f"{self._where(number)}: {reason[:FOUND_CHARACTERS_MAX]}")


_UNKNOWN = "Object contains unknown field `"


def _reason(error: str) -> str:
    if not error.startswith(_UNKNOWN):
        return error
    name = error.removeprefix(_UNKNOWN).partition("`")[0]
    return f"no column for its field {name!r}; add one, or leave such fields out with unknown_fields=ignore"


@cache
def _python_type(kind: pa.DataType, strict: bool) -> Any:
    """What msgspec decodes a JSON value of a column of this type to."""
    if pa.types.is_struct(kind):
        fields = [(f"f{at}", _optional(field.type, strict), None) for at, field in enumerate(kind)]
        names = {f"f{at}": field.name for at, field in enumerate(kind)}
        return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=strict)
    if pa.types.is_list(kind):
        return list[_optional(kind.value_type, strict)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[_key_type(kind.key_type), _optional(kind.item_type, strict)]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_floating(kind):
        return float | str
    return _leaf_type(kind)


def _optional(kind: pa.DataType, strict: bool) -> Any:
    found = _python_type(kind, strict)
    return found if found is msgspec.Raw else found | None  # a Raw may be `null` by itself


def _key_type(kind: pa.DataType) -> Any:
    return int if pa.types.is_integer(kind) else str


def _leaf_type(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind):
        return datetime
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_date(kind):
        return date
    if pa.types.is_binary(kind):
        return bytes
    return msgspec.Raw  # a column of texts takes any JSON value


@cache
def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """From what msgspec has decoded to what Arrow takes."""
    if pa.types.is_struct(kind):
        members = [(f"f{at}", field.name, _nullable(field.type)) for at, field in enumerate(kind)]
        return lambda row: {name: convert(getattr(row, own)) for own, name, convert in members}
    if pa.types.is_list(kind):
        inner = _nullable(kind.value_type)
        return lambda values: [inner(value) for value in values]
    if pa.types.is_map(kind):
        items = _nullable(kind.item_type)
        return lambda pairs: [(key, items(value)) for key, value in pairs.items()]
    if pa.types.is_floating(kind):
        return _special
    return _text if _python_type(kind, True) is msgspec.Raw else lambda value: value


def _nullable(kind: pa.DataType) -> Callable[[Any], Any]:
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


_SPECIAL = ("NaN", "Infinity", "-Infinity")


def _special(value: float | str) -> float:
    if isinstance(value, str) and value not in _SPECIAL:
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _text(raw: msgspec.Raw) -> str | None:
    data = bytes(raw)
    if data == b"null":
        return None
    return msgspec.json.decode(data, type=str) if data.startswith(b'"') else data.decode()


def partitions(table: pa.Table, by: Sequence[str]) -> list[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each combination of values, in order. Raises Refused for a date that has no name as a folder."""
    if not by:
        return [((), table)]
    numbered = table.select([*by]).append_column("__row", pa.array(np.arange(len(table))))
    groups = numbered.group_by([*by], use_threads=False).aggregate([("__row", "list")])
    keys = zip(*(_values(groups[name], name) for name in by), strict=True)
    rows = groups["__row_list"].combine_chunks()
    if len(groups) == 1:
        return [(next(keys), table)]
    return [(key, table.take(pc.list_flatten(rows.slice(at, 1)))) for at, key in enumerate(keys)]


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise Refused(
            f"partition_by names {name!r}, which has a date outside the years 1 to 9999",
            "Drop such rows or make them null in the pipeline's function.",
        ) from error
    return found
