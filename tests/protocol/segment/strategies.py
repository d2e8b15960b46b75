"""Arbitrary messages, made from the dialects' own tables."""

from typing import Any

from hypothesis import strategies as st

from penstock.protocol.segment import (
    AttributeUpdate,
    Dialect,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    Message,
    Part,
    TableEntry,
    TableKey,
    frame_events,
)
from penstock.protocol.segment.dialect import Layout
from penstock.protocol.segment.primitives import (
    I8,
    I32,
    I64,
    Blob,
    Bool,
    Field,
    Flags,
    FramedEvent,
    LocatedFiles,
    LocatedObjects,
    LocatedRows,
    PartOf,
    Rest,
    Updates,
    Utf,
    Uuid,
    Zeros,
)
from penstock.protocol.segment.table_fields import TableEntries, TableKeys, Versions

uuids = st.binary(min_size=16, max_size=16)
texts = st.text(max_size=20)
i64s = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(max_size=200)

_UPDATE = st.builds(AttributeUpdate, uuids, st.integers(-128, 127), i64s, i64s)

_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_FILE = st.builds(LocatedFile, texts, _U64, _U64)
_ROW = st.builds(LocatedRow, _U32, _U64, *[_U32] * 5)

_VALUES: dict[type[Field], st.SearchStrategy[Any]] = {
    I8: st.integers(-128, 127),
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: i64s,
    Uuid: uuids,
    Bool: st.booleans(),
    Flags: st.booleans(),
    PartOf: st.sampled_from(Part),
    Utf: texts,
    Blob: blobs,
    Rest: blobs,
    Zeros: st.integers(0, 200),
    FramedEvent: blobs.map(lambda data: frame_events([data])),
    LocatedFiles: st.lists(_FILE, max_size=3).map(tuple),
    LocatedObjects: st.lists(st.builds(LocatedObject, texts, texts, st.integers(-(2**63), 2**63 - 1)), max_size=3).map(
        tuple
    ),
    LocatedRows: st.lists(_ROW, max_size=3).map(tuple),
    TableEntries: st.lists(st.builds(TableEntry, blobs, i64s, blobs), max_size=3).map(tuple),
    TableKeys: st.lists(st.builds(TableKey, blobs, i64s), max_size=3).map(tuple),
    Versions: st.lists(i64s, max_size=3).map(tuple),
    Updates: st.lists(_UPDATE, max_size=3).map(tuple),
}


def messages(dialect: Dialect) -> st.SearchStrategy[Message]:
    return st.one_of([_of(layout) for _, layout in sorted(dialect.table.items())])


def _of(layout: Layout) -> st.SearchStrategy[Message]:
    values = {
        name: _VALUES[type(field)]
        for field in layout.fields
        for name in (field.names if isinstance(field, Flags) else (field.name,))
    }
    return st.builds(layout.message, **values)
