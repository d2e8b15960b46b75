"""Requests about segments as a whole: each is one change of the store, or one look at it."""

from collections.abc import Callable
from typing import Any

from penstock.core import errors
from penstock.core.attributes import NO_VALUE
from penstock.core.types import Position
from penstock.protocol.segment import (
    Attribute,
    AttributeUpdated,
    CreateSegment,
    DeleteSegment,
    GetAttribute,
    GetSegmentInfo,
    MergeSegments,
    Message,
    OperationUnsupported,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    TruncateSegment,
    UpdateAttribute,
)
from penstock.protocol.segment.codes import AttributeUpdateKind
from penstock.segment_server.protection import attributes_of_new
from penstock.store.plan import AttributeUpdate
from penstock.store.store import SegmentStore

Handled = tuple[Message, Position]
"""A reply, and how far the journal must be durable before it is sent."""


class Managing:
    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.handlers: dict[type[Message], Callable[[Any], Handled]] = {
            CreateSegment: self._create,
            DeleteSegment: self._delete,
            GetAttribute: self._get_attribute,
            GetSegmentInfo: self._info,
            MergeSegments: self._merge,
            SealSegment: self._seal,
            TruncateSegment: self._truncate,
            UpdateAttribute: self._update_attribute,
        }

    def _create(self, request: CreateSegment) -> Handled:
        position = self._store.create(request.segment, attributes_of_new(request.segment))
        return SegmentCreated(request.segment, request.request_id), position

    def _seal(self, request: SealSegment) -> Handled:
        return SegmentSealed(request.segment, request.request_id), self._store.seal(request.segment)

    def _delete(self, request: DeleteSegment) -> Handled:
        return SegmentDeleted(request.segment, request.request_id), self._store.delete(request.segment)

    def _truncate(self, request: TruncateSegment) -> Handled:
        position = self._store.truncate(request.segment, request.offset)
        return SegmentTruncated(request.segment, request.request_id), position

    def _info(self, request: GetSegmentInfo) -> Handled:
        info = self._store.info(request.segment)
        reply = SegmentInfo(
            segment=info.name,
            exists=True,
            sealed=info.sealed,
            deleted=False,
            modified=0,
            # What is not durable yet will be when the reply leaves.
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

    def _merge(self, request: MergeSegments) -> Handled:
        updates = []
        for update in request.updates:
            if update.kind not in (AttributeUpdateKind.REPLACE, AttributeUpdateKind.REPLACE_IF_EQUALS):
                reply = OperationUnsupported("attribute update", f"kind {update.kind}", request.request_id)
                return reply, self._store.journal.end
            conditional = update.kind == AttributeUpdateKind.REPLACE_IF_EQUALS
            expected = update.expected if conditional else None
            updates.append(AttributeUpdate(request.target, update.attribute_id, update.value, expected))
        position = self._store.merge([(request.target, request.source)], updates)
        length = self._store.length(request.target)
        return SegmentsMerged(request.target, request.source, length, request.request_id), position
