"""Decodes Arrow batches of events: each codec adds columns, and events that it cannot decode come back with the reason.

It runs in the reader of a source, and needs no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, VARIANT, Field, Fields, Kind, arrow_field, ddl
from penstock.protocol.stored.names import OUTPUT_PREFIX, REPLAY_PREFIX, Form, Source, connector_segment
from penstock.spark.codecs.api import Columns, Decode, TooMuch
from penstock.spark.codecs.codec import DATA, Branch, fits
from penstock.spark.codecs.registry import codec

_Rows = NDArray[np.int64]

_RESERVED = ("port",)
"""Names with a meaning for the frames that a function returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What became of a batch. Every row of it is in one of the two."""

    batch: pa.RecordBatch
    """The rows that were decoded, in order: their own columns, then the decoded ones."""
    failed: pa.RecordBatch
    """The other rows, in order, with their own columns."""
    reasons: Sequence[str]
    """Why each of them cannot be decoded."""


class Decoder:
    """Decodes each event by the first branch that matches it. The last branch matches all.

    `taken` are the names of the event's own columns: a schema with a field of such a name is decoded into one struct
    column, `data`. Raises RequestError for a codec or a schema that cannot be used, and for schemas that conflict.
    """

    def __init__(self, branches: Sequence[Branch], taken: Collection[str]) -> None:
        self._branches = [_Branch(branch, taken) for branch in branches]
        self.fields = _united([branch.fields for branch in self._branches])
        """The columns that it adds. A VARIANT is the text of its JSON here: the frame parses it."""
        self.schema = pa.schema([arrow_field(Field(field.name, field.kind)) for field in self.fields])

    @property
    def branches(self) -> list[Branch]:
        return [branch.plain for branch in self._branches]

    @property
    def names_of_branches(self) -> list[tuple[str, ...]]:
        """For each branch, the columns that it sets."""
        return [tuple(field.name for field in branch.fields) for branch in self._branches]

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The columns of an event that it reads."""
        plain = [branch.plain for branch in self._branches]
        by_type = any(branch.content_type or branch.codec is None for branch in plain)
        by_source = any(branch.source for branch in plain)
        return ("value", *(("content_type",) if by_type else ()), *(("segment", "source") if by_source else ()))

    def ddl(self) -> str:
        """The columns that it adds in Spark's DDL, all nullable; texts for VARIANT."""
        return ddl(Field(field.name, _sent(field.kind)) for field in self.fields)

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The batch has at least the columns that `needs` names. Raises TooMuch if it has to be decoded in parts."""
        parts = [
            _Part(rows, self._branches[number], self._branches[number].decode(batch, rows))
            for number, rows in self._split(batch)
        ]
        failed = {row: reason for part in parts for row, reason in part.failed()}
        if not failed:
            return Decoded(self._joined(batch, parts), batch.slice(0, 0), ())
        bad = sorted(failed)
        good = batch.take(pa.array(np.setdiff1d(np.arange(batch.num_rows), bad)))
        return Decoded(self._joined(good, parts), batch.take(pa.array(bad)), [failed[row] for row in bad])

    def decode_parts(self, batch: pa.RecordBatch) -> Iterator[Decoded]:
        """The batch, in as many parts as its events need to become columns within the limits of their codecs."""
        try:
            decoded = self.decode(batch)
        except TooMuch:
            if batch.num_rows < 2:
                raise
        else:
            yield decoded
            return
        middle = batch.num_rows // 2
        yield from self.decode_parts(batch.slice(0, middle))
        yield from self.decode_parts(batch.slice(middle))

    def _split(self, batch: pa.RecordBatch) -> list[tuple[int, _Rows]]:
        """The rows of each branch, for those that have some."""
        if len(self._branches) == 1:
            return [(0, np.arange(batch.num_rows))]
        by = self.needs[1:]
        keys, distinct = _distinct([batch.column(name) for name in by])
        chosen = [self._branch_of(dict(zip(by, values, strict=True))) for values in distinct]
        numbers = np.array(chosen, np.int64)[keys]
        return [(number, np.flatnonzero(numbers == number)) for number in sorted({*chosen})]

    def _branch_of(self, event: Mapping[str, str | None]) -> int:
        matching = (number for number, branch in enumerate(self._branches) if _matches(branch.plain, event))
        return next(matching, len(self._branches) - 1)

    def _joined(self, batch: pa.RecordBatch, parts: Sequence[_Part]) -> pa.RecordBatch:
        """The rows that were decoded, with the columns of all branches: null where a row's own branch has none."""
        rows = np.concatenate([part.good() for part in parts]) if parts else np.arange(0)
        order = pa.array(np.argsort(rows))
        arrays = []
        for field in self.schema:
            found = [part.array(field) for part in parts] or [pa.nulls(0, field.type)]
            arrays.append(found[0] if len(found) == 1 else pa.concat_arrays(found).take(order))
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=pa.schema([*batch.schema, *self.schema]))


class _Branch:
    def __init__(self, plain: Branch, taken: Collection[str]) -> None:
        self.plain = plain
        self.fields: Fields = ()
        self._decode: Decode | None = None
        self._whole: pa.StructType | None = None
        """Set if all fields are in one column."""
        if plain.codec is None:
            return
        found = codec(plain.codec)
        schema = None if plain.schema is None or not found.about.takes_schema else parse_ddl(plain.schema)
        self.fields, self._decode = found.fields(schema), found.decoder(schema)
        if schema is not None and _hides(self.fields, taken):
            self._whole = pa.struct([arrow_field(field) for field in self.fields])
            self.fields = (Field(DATA, Kind("struct", fields=self.fields)),)

    def decode(self, batch: pa.RecordBatch, rows: _Rows) -> Columns:
        values = batch.column("value")
        if self._decode is not None:
            found = self._decode(values if len(rows) == len(values) else values.take(pa.array(rows)))
            arrays = found.arrays
            if any(len(array) != len(rows) - len(found.failed) for array in arrays):
                raise RequestError(
                    f"the codec {self.plain.codec} has returned {len(arrays[0])} rows and {len(found.failed)} failures "
                    f"for {len(rows)} events",
                    "Test it with penstock.testing.codecs.CodecConformance.",
                )
            if self._whole is not None:
                arrays = [pa.StructArray.from_arrays(arrays, fields=[*self._whole])]
            return Columns(arrays, {row: f"`value` {reason}" for row, reason in found.failed.items()})
        content_types = batch.column("content_type").take(pa.array(rows)).to_pylist()
        reasons = (f"no codec for its content type ({given or 'none given'})" for given in content_types)
        return Columns([], dict(enumerate(reasons)))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The rows of a batch that one branch has decoded."""

    rows: _Rows
    branch: _Branch
    columns: Columns

    def failed(self) -> Iterator[tuple[int, str]]:
        return ((int(self.rows[row]), reason) for row, reason in self.columns.failed.items())

    def good(self) -> _Rows:
        return np.delete(self.rows, [*self.columns.failed]) if self.columns.failed else self.rows

    def array(self, field: pa.Field) -> pa.Array:
        names = [each.name for each in self.branch.fields]
        if field.name not in names or not self.columns.arrays:
            return pa.nulls(len(self.good()), field.type)
        return self.columns.arrays[names.index(field.name)]


def _hides(fields: Fields, taken: Collection[str]) -> bool:
    """Whether a field has the name of one of the event's own columns, ignoring case as Spark does."""
    lower = {name.lower() for name in (*taken, *_RESERVED)}
    return any(field.name.lower() in lower for field in fields)


def _united(given: Sequence[Fields]) -> Fields:
    found: dict[str, Kind] = {}
    for field in (field for fields in given for field in fields):
        if found.setdefault(field.name, field.kind) != field.kind:
            raise RequestError(
                f"`{field.name}` would be {found[field.name]} and {field.kind}",
                "Use schemas that agree for the connectors of this pipeline, or a separate input for each.",
            )
    return tuple(Field(name, kind) for name, kind in found.items())


def _sent(kind: Kind) -> Kind:
    """The type in which a value leaves the reader: a VARIANT is sent as text."""
    if kind == VARIANT:
        return STRING
    fields = tuple(Field(field.name, _sent(field.kind)) for field in kind.fields)
    return Kind(kind.name, kind.numbers, tuple(map(_sent, kind.of)), fields)


def _distinct(columns: Sequence[pa.Array]) -> tuple[_Rows, list[tuple[str | None, ...]]]:
    """The distinct combinations of the columns' values, and the number of its combination for each row."""
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    numbers = np.stack([column.indices.to_numpy() for column in encoded])
    combinations, keys = np.unique(numbers, axis=1, return_inverse=True)
    names = [column.dictionary.to_pylist() for column in encoded]
    return keys.reshape(-1), [
        tuple(texts[number] for texts, number in zip(names, one, strict=True)) for one in combinations.T.tolist()
    ]


def _matches(branch: Branch, event: Mapping[str, str | None]) -> bool:
    if branch.source and not _is_of(event["segment"] or "", event["source"], branch.source):
        return False
    return not branch.content_type or fits(event["content_type"], branch.content_type)


def _is_of(segment: str, given: str | None, source: str) -> bool:
    """A replayed dead letter is decoded like the source that it first came from."""
    parsed = Source.parse(source)
    if parsed.form is not Form.CONNECTOR:
        return segment == parsed.segment
    is_replayed = segment.startswith(OUTPUT_PREFIX) and f"/{REPLAY_PREFIX}" in segment
    here = segment.startswith(connector_segment(parsed.name, 0).removesuffix("0"))
    return here or (is_replayed and given == parsed.name)
