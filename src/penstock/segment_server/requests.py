"""Requests about segments as a whole: each is one change of the store, or one look at it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from penstock.core import errors
from penstock.core.address import this_machine
from penstock.core.errors import LimitExceeded, NoSuchSegment, PenstockError, RequestError
from penstock.core.types import NO_VALUE, Position
from penstock.protocol.segment import (
    Attribute,
    AttributeUpdated,
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    GetAttribute,
    GetSegmentInfo,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    LocateSegment,
    MergeSegments,
    Message,
    OperationUnsupported,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentLocated,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    TruncateSegment,
    UpdateAttribute,
)
from penstock.protocol.segment.messages import AttributeUpdateKind
from penstock.protocol.segment.primitives import LOCATED_ROWS_MAX
from penstock.protocol.stored.names import TRANSIENT
from penstock.segment_server.caller import Caller
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.segment_server.tables import TableRequests, Tables
from penstock.store.files import LocalFile, RemoteFile
from penstock.store.journal import Journal
from penstock.store.plan import AttributeUpdate
from penstock.store.reader import Located
from penstock.store.store import SegmentStore

Handled = tuple[Message, Position]
"""A reply, and how far the journal must be durable before it is sent."""


class SegmentRequests:
    """Of one connection, which may have transient segments: they are deleted with it."""

    def __init__(
        self, store: SegmentStore, caller: Caller, settings: ServerSettings, counters: Counters, tables: Tables
    ) -> None:
        self._store = store
        self._caller = caller
        self._settings = settings
        self._counters = counters
        self._tables = tables
        self._transient: set[str] = set()
        self.handlers: dict[type[Message], Callable[[Any], Handled]] = {
            CreateSegment: self._create,
            CreateTransientSegment: self._create_transient,
            DeleteSegment: self._delete,
            GetAttribute: self._get_attribute,
            GetSegmentInfo: self._info,
            LocateSegment: self._locate,
            MergeSegments: self._merge,
            SealSegment: self._seal,
            TruncateSegment: self._truncate,
            UpdateAttribute: self._update_attribute,
            **TableRequests(store, caller, tables).handlers,
        }

    def check_form(self, request: Message) -> None:
        """Raises RequestError for a request that would put something else than entries into a table."""
        if not isinstance(request, _NOT_FOR_TABLES):
            return
        names = (request.target, request.source) if isinstance(request, MergeSegments) else (request.segment,)
        for name in filter(self._tables.is_table, names):
            raise RequestError(f"segment {name!r} is a table", "Use requests about tables.")

    def close(self) -> None:
        """Delete what the connection has begun, and cannot end any more."""
        for name in self._transient:
            with suppress(PenstockError):
                self._store.delete(name)
        self._transient.clear()

    def _create_transient(self, request: CreateTransientSegment) -> Handled:
        if not self._store.exists(request.segment):
            raise NoSuchSegment(f"segment {request.segment!r} not found")
        if len(self._transient) >= self._settings.appenders_max:
            raise LimitExceeded(f"{len(self._transient)} transient segments on one connection (appenders_max)")
        name = f"{request.segment}{TRANSIENT}{uuid4().hex}"
        self._caller.check_count(name)
        position = self._store.create(name, self._caller.attributes_of_new(name))
        self._transient.add(name)
        return SegmentCreated(name, request.request_id), position

    def _create(self, request: CreateSegment) -> Handled:
        self._caller.check_count(request.segment)
        position = self._store.create(request.segment, self._caller.attributes_of_new(request.segment))
        return SegmentCreated(request.segment, request.request_id), position

    def _seal(self, request: SealSegment) -> Handled:
        return SegmentSealed(request.segment, request.request_id), self._store.seal(request.segment)

    def _delete(self, request: DeleteSegment) -> Handled:
        position = self._store.delete(request.segment)
        self._transient.discard(request.segment)
        self._caller.audit(request.segment, "delete")
        return SegmentDeleted(request.segment, request.request_id), position

    def _truncate(self, request: TruncateSegment) -> Handled:
        position = self._store.truncate(request.segment, request.offset)
        self._caller.audit(request.segment, f"truncate before {request.offset}")
        return SegmentTruncated(request.segment, request.request_id), position

    def _info(self, request: GetSegmentInfo) -> Handled:
        info = self._store.info(request.segment)
        reply = SegmentInfo(
            segment=info.name,
            exists=True,
            sealed=info.sealed,
            deleted=False,
            modified=0,
            # Bytes that are not durable yet will be when the reply leaves.
            write_offset=self._store.length(request.segment),
            start_offset=info.start,
            request_id=request.request_id,
        )
        return reply, self._store.journal.end

    def _get_attribute(self, request: GetAttribute) -> Handled:
        value = self._store.attribute(request.segment, request.attribute_id)
        reply = Attribute(NO_VALUE if value is None else value, request.request_id)
        return reply, self._store.journal.end

    def _update_attribute(self, request: UpdateAttribute) -> Handled:
        update = AttributeUpdate(request.segment, request.attribute_id, request.value, request.expected)
        try:
            position = self._store.update_attributes([update])
        except errors.ConditionFailed:
            return AttributeUpdated(success=False, request_id=request.request_id), self._store.journal.end
        return AttributeUpdated(success=True, request_id=request.request_id), position

    def _locate(self, request: LocateSegment) -> Handled:
        """For a reader that opens the journal's files or objects itself: whether it may, their permissions decide."""
        is_here = bool(request.machine) and request.machine == this_machine()
        if not self._settings.short_circuit or not (is_here or (request.objects and self._has_objects())):
            self._counters.locates_refused += 1
            why = "is off" if not self._settings.short_circuit else "is for readers on the same machine"
            return OperationUnsupported("LocateSegment", f"reading files {why}", request.request_id), Position(0)
        length = min(max(request.length, 1), self._settings.located_bytes_max)
        located = self._store.locate(request.segment, request.offset, length, LOCATED_ROWS_MAX)
        places = _Places(self._store.journal, paths=is_here, objects=request.objects)
        rows = tuple(places.rows(located))
        self._counters.locates += 1
        self._counters.located_bytes += sum(row.take for row in rows)
        self._counters.located_remote_bytes += sum(row.take for row in rows if not places.files[row.file].path)
        reply = SegmentLocated(
            request.segment,
            request.offset,
            tuple(places.files),
            rows,
            request.request_id,
            tuple(places.objects) if request.objects else (),
        )
        return reply, Position(0)

    def _has_objects(self) -> bool:
        """Whether the journal is in a bucket: the oldest chapter is the first to be closed. Readers on other machines
        do not ask again for a while if it is not.
        """
        journal = self._store.journal
        return journal.remote_file(journal.chapters[0]) is not None

    def _merge(self, request: MergeSegments) -> Handled:
        updates = []
        for update in request.updates:
            if update.kind not in (AttributeUpdateKind.REPLACE, AttributeUpdateKind.REPLACE_IF_EQUALS):
                reply = OperationUnsupported("attribute update", f"kind {update.kind}", request.request_id)
                return reply, self._store.journal.end
            conditional = update.kind == AttributeUpdateKind.REPLACE_IF_EQUALS
            expected = update.expected if conditional else None
            updates.append(AttributeUpdate(request.target, update.attribute_id, update.value, expected))
        self._caller.check_merge(request.target, request.source)
        position = self._store.merge([(request.target, request.source)], updates)
        self._transient.discard(request.source)
        length = self._store.length(request.target)
        return SegmentsMerged(request.target, request.source, length, request.request_id), position


_NOT_FOR_TABLES = (SetupAppend, SealSegment, TruncateSegment, MergeSegments)

_NO_FILE = LocatedFile("", 0, 0)
_NO_OBJECT = LocatedObject("", "")


class _Places:
    """Where a reader finds chapters, each with its number: as files, if it may have their `paths`, as objects, or as
    both.
    """

    def __init__(self, journal: Journal, *, paths: bool, objects: bool) -> None:
        self._journal = journal
        self._paths = paths
        self._objects = objects
        self._chapters: dict[Position, tuple[LocalFile | None, RemoteFile | None]] = {}
        self._numbers: dict[tuple[Position, tuple[str, int]], int] = {}
        self.files: list[LocatedFile] = []
        self.objects: list[LocatedObject] = []

    def rows(self, located: Located) -> Iterator[LocatedRow]:
        """Only those before a chapter that the reader cannot find."""
        for chapter, row, _, skip, take in located.pieces:
            position = self._journal.local_offset(chapter, row.position)
            number = self._number(chapter, position, position + row.head_length + row.length)
            if number is None:
                return
            yield LocatedRow(number, position, row.head_length, row.length, row.checksum, skip, take)

    def _number(self, chapter: Position, start: int, end: int) -> int | None:
        """Of the place that has all these bytes. A chapter that is in several objects has several numbers."""
        local, remote = self._found(chapter)
        part = None if remote is None else remote.part(start, end)
        if local is None and part is None:
            return None
        key = chapter, ("", 0) if part is None else (part.key, part.shift)
        if key not in self._numbers:
            self._numbers[key] = len(self.files)
            self.files.append(_NO_FILE if local is None else LocatedFile(*local))
            self.objects.append(_NO_OBJECT if part is None else LocatedObject(part.url, part.key, part.shift))
        return self._numbers[key]

    def _found(self, chapter: Position) -> tuple[LocalFile | None, RemoteFile | None]:
        if chapter not in self._chapters:
            local = self._journal.local_file(chapter) if self._paths else None
            remote = self._journal.remote_file(chapter) if self._objects else None
            self._chapters[chapter] = local, remote
        return self._chapters[chapter]
