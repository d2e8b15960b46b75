"""The part of `apply` that runs in Spark's Python workers: batches of the frame in, batches of the result out."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import ERR, LETTER, LETTER_FIELDS, REASON_CHARACTERS_MAX, letter_arrow
from penstock.spark.run.failures import place_of

# Isolates the rows for which a function raises: a batch that fails is halved until those rows are alone. Pure: no
# Spark.

Function: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Poison:
    """A row of a batch for which the function raised, and the reason."""

    row: int
    reason: str


def halved(function: Function, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Poison]:
    """The function's results for the batch's rows, in order, and a Poison for each row for which it raises an
    Exception. The function is called once if it does not raise, otherwise about 2·p·log2(n) times for p such rows of n.
    """
    waiting = [(0, batch.num_rows)] if batch.num_rows else []
    while waiting:
        start, end = waiting.pop()
        try:
            yield function(batch.slice(start, end - start))
        except Exception as error:  # any: the dead letter contains the row's bytes and the reason
            if end - start == 1:
                yield Poison(start, reason_of(error))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]


def reason_of(error: Exception) -> str:
    """The error as in the last line of a traceback, and the user's line that raised it, of a bounded length and in
    valid UTF-8. Never raises, although the text may come from a user's class.
    """
    try:
        message = str(error).encode(errors="backslashreplace").decode()
    except Exception:
        message = "(its text is not available)"
    place = place_of(error)
    suffix = "" if place is None else f" (at {place})"
    text, room = f"{type(error).__name__}: {message}".removesuffix(": "), REASON_CHARACTERS_MAX - len(suffix)
    return (text if len(text) <= room else f"{text[: room - 1]}…") + suffix


# Dead letters from the rows of Arrow batches that a Python function could not process.


def letters_of(batch: pa.RecordBatch, poison: Sequence[Poison]) -> pa.StructArray:
    """The rows as dead letters for the port `err`, from those columns of their events that the batch has. Without a
    `value` of bytes or text, the dead letter contains the row as JSON, and no segment and offset: the bytes stored
    there are different ones.
    """
    rows = batch.take(pa.array([one.row for one in poison], pa.int64()))
    kinds = {field.name: field.type for field in letter_arrow()}
    found = {name: _taken(rows, name, kinds[name]) for name in LETTER_FIELDS if name in rows.schema.names}
    columns = {name: column for name, column in found.items() if column is not None}
    if "value" not in columns:
        columns = {name: column for name, column in columns.items() if name not in ("segment", "offset")}
        columns["value"] = pa.array(_as_json(rows), pa.binary())
    columns["value"] = columns["value"].fill_null(b"")
    columns["port"] = pa.array([ERR] * len(poison), pa.string())
    columns["reason"] = pa.array([one.reason for one in poison], pa.string())
    arrays = [columns.get(name, pa.nulls(len(poison), kind)) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(arrays, fields=list(letter_arrow()))


def _taken(rows: pa.RecordBatch, name: str, kind: Any) -> Any:
    """The column with the type that a dead letter needs; None if it is an unrelated column of the same name."""
    column = rows.column(name)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if pa.types.is_timestamp(kind):
        alike = pa.types.is_timestamp(column.type) and column.type.tz is not None
    elif pa.types.is_binary(kind):
        alike = is_text or is_bytes
    else:
        alike = is_text if pa.types.is_string(kind) else column.type == kind
    return column.cast(kind) if alike else None


def _as_json(rows: pa.RecordBatch) -> list[bytes]:
    names = [name for name in rows.schema.names if name != LETTER]
    columns = zip(*(_values(rows.column(name)) for name in names), strict=True)
    documents = (dict(zip(names, row, strict=True)) for row in columns)
    return [json.dumps(row, default=_plain, ensure_ascii=False).encode() for row in documents]


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # times beyond Python's calendar
        values = column.cast(pa.string()).to_pylist()
    return values


def _plain(value: object) -> str:
    """Types that JSON lacks: bytes in base64, as Spark writes them; times and numbers as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A user's function, and the columns of its result."""

    function: Callable[..., Any]
    by_row: bool
    schema: pa.Schema
    keep: tuple[str, ...]
    lettered: bool
    """Whether the batches have a column `letter`."""
    keeps_errors: bool
    """Whether rows for which it raises become dead letters."""

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self._of(batch)

    def _of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self.lettered:
            letter = batch.column(LETTER)
            if letter.null_count < batch.num_rows:
                yield self._letters(batch.schema, letter.filter(letter.is_valid()))
                batch = batch.filter(letter.is_null())
            batch = batch.drop_columns([LETTER])
        if not self.keeps_errors:
            if batch.num_rows:
                with self._event_noted(batch):
                    result = self._result(batch)
                yield self._finished(result)
            return
        poison: list[Poison] = []
        for result in halved(self._result, batch):
            if isinstance(result, Poison):
                poison.append(result)
            elif result.num_rows:
                yield self._finished(result)
        if poison:
            yield self._letters(batch.schema, letters_of(batch, poison))

    @contextmanager
    def _event_noted(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Adds the position of the failing event to an exception, if the rows still contain it."""
        try:
            yield
        except Exception as error:
            poison = next((one for one in halved(self._result, batch) if isinstance(one, Poison)), None)
            if poison is not None and {"segment", "offset"} <= {*batch.schema.names}:
                segment, offset = (batch.column(name)[poison.row].as_py() for name in ("segment", "offset"))
                error.add_note(f"at the event {segment}@{offset}")
            raise

    def _result(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The function's result for the rows, with the columns that `keep` names."""
        if self.by_row:
            return self._result_by_row(batch)
        result = _one_batch(self.function(batch), self.schema)
        if self.keep and result.num_rows != batch.num_rows:
            raise RequestError(
                f"the function returns {result.num_rows} rows for {batch.num_rows}: with keep, each needs one"
            )
        return _with(result, {name: batch.column(name) for name in self.keep})

    def _result_by_row(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows: list[Mapping[str, Any]] = []
        origins: list[int] = []
        for number, row in enumerate(batch.to_pylist()):
            found = _as_rows(self.function(row))
            rows += found
            origins += [number] * len(found)
        result = pa.RecordBatch.from_pylist(rows, self.schema)
        places = pa.array(origins, pa.int64())
        return _with(result, {name: pc.take(batch.column(name), places) for name in self.keep})

    def _finished(self, result: pa.RecordBatch) -> pa.RecordBatch:
        if not (self.lettered or self.keeps_errors):
            return result
        return _with(result, {LETTER: pa.nulls(result.num_rows, letter_arrow())})

    def _letters(self, schema: pa.Schema, letters: Any) -> pa.RecordBatch:
        """Rows that contain only dead letters."""
        fields = [*self.schema, *(schema.field(name) for name in self.keep)]
        columns = {field.name: pa.nulls(len(letters), field.type) for field in fields}
        return pa.RecordBatch.from_pydict(columns | {LETTER: letters.cast(letter_arrow())})


def _as_rows(returned: Any) -> list[Mapping[str, Any]]:
    if returned is None:
        return []
    return [returned] if isinstance(returned, Mapping) else [*returned]


def _one_batch(returned: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the schema, with its types. Raises Arrow's own error for a result that cannot be converted."""
    if isinstance(returned, pa.Table):
        batches = returned.combine_chunks().to_batches()
        returned = batches[0] if batches else pa.RecordBatch.from_pylist([], returned.schema)
    if not isinstance(returned, pa.RecordBatch):
        raise RequestError(f"the function returns {type(returned).__name__}, not an Arrow batch or table")
    arrays = [returned.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with(batch: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    names = [*batch.schema.names, *columns]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], names=names)
