"""The part of `apply` that runs in Spark's Python workers: batches of the frame in, batches of the result out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import ERR, REASON_CHARACTERS_MAX
from penstock.spark.run.failures import place_of
from penstock.spark.side_outputs import Rejected, SideOutputs

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


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A user's function, and the columns of its result."""

    function: Callable[..., Any]
    by_row: bool
    schema: pa.Schema
    keep: tuple[str, ...]

    def rejecting(self, batches: Iterator[pa.RecordBatch], sides: SideOutputs) -> Iterator[pa.RecordBatch]:
        """The results; rows for which the function raises become dead letters."""
        for batch in batches:
            poison: list[Poison] = []
            for result in halved(self._result, batch):
                if isinstance(result, Poison):
                    poison.append(result)
                elif result.num_rows:
                    yield result
            if poison:
                rows = pa.Table.from_batches([batch]).take([one.row for one in poison])
                sides.stage(rows, Rejected(ERR, [one.reason for one in poison]))

    def all_or_fail(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results; raises what the function raises."""
        for batch in batches:
            if batch.num_rows:
                with self._event_noted(batch):
                    result = self._result(batch)
                yield result

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
