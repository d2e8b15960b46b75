"""The part of `apply` that runs in Spark's Python workers: batches of the frame in, batches of the result out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.letters.arrow_letters import letters_of
from penstock.letters.halving import Poison, halved
from penstock.spark.letter import LETTER, letter_arrow


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A user's function, and what its result is to look like."""

    function: Callable[..., Any]
    by_row: bool
    schema: pa.Schema
    keep: tuple[str, ...]
    lettered: bool
    """Whether the batches have a column `letter`."""
    keeps_errors: bool
    """Whether rows that it raises for become letters."""

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
                with self._placed(batch):
                    made = self._made(batch)
                yield self._finished(made)
            return
        poison: list[Poison] = []
        for made in halved(self._made, batch):
            if isinstance(made, Poison):
                poison.append(made)
            elif made.num_rows:
                yield self._finished(made)
        if poison:
            yield self._letters(batch.schema, letters_of(batch, poison))

    @contextmanager
    def _placed(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Adds to an exception which event it is for, where the rows still say so."""
        try:
            yield
        except Exception as error:
            poison = next((one for one in halved(self._made, batch) if isinstance(one, Poison)), None)
            if poison is not None and {"segment", "offset"} <= {*batch.schema.names}:
                segment, offset = (batch.column(name)[poison.row].as_py() for name in ("segment", "offset"))
                error.add_note(f"at the event {segment}@{offset}")
            raise

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the function makes of the rows, and the columns that are kept of them."""
        if self.by_row:
            return self._made_of_rows(batch)
        made = _one_batch(self.function(batch), self.schema)
        if self.keep and made.num_rows != batch.num_rows:
            raise RequestError(
                f"the function gives {made.num_rows} rows for {batch.num_rows}: with keep, each needs one"
            )
        return _with(made, {name: batch.column(name) for name in self.keep})

    def _made_of_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows: list[Mapping[str, Any]] = []
        origins: list[int] = []
        for number, row in enumerate(batch.to_pylist()):
            found = _as_rows(self.function(row))
            rows += found
            origins += [number] * len(found)
        made = pa.RecordBatch.from_pylist(rows, self.schema)
        places = pa.array(origins, pa.int64())
        return _with(made, {name: pc.take(batch.column(name), places) for name in self.keep})

    def _finished(self, made: pa.RecordBatch) -> pa.RecordBatch:
        if not (self.lettered or self.keeps_errors):
            return made
        return _with(made, {LETTER: pa.nulls(made.num_rows, letter_arrow())})

    def _letters(self, schema: pa.Schema, letters: Any) -> pa.RecordBatch:
        """Rows that are nothing but letters."""
        fields = [*self.schema, *(schema.field(name) for name in self.keep)]
        columns = {field.name: pa.nulls(len(letters), field.type) for field in fields}
        return pa.RecordBatch.from_pydict(columns | {LETTER: letters.cast(letter_arrow())})


def _as_rows(given: Any) -> list[Mapping[str, Any]]:
    if given is None:
        return []
    return [given] if isinstance(given, Mapping) else [*given]


def _one_batch(given: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the schema, with its types. Raises whatever Arrow does for what cannot be made so."""
    if isinstance(given, pa.Table):
        batches = given.combine_chunks().to_batches()
        given = batches[0] if batches else pa.RecordBatch.from_pylist([], given.schema)
    if not isinstance(given, pa.RecordBatch):
        raise RequestError(f"the function gives {type(given).__name__}, not an Arrow batch or table")
    arrays = [given.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with(batch: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    names = [*batch.schema.names, *columns]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], names=names)
