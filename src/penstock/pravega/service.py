"""The methods of the controller service: messages in, commands to the machine, messages out.

read     every question about a scope or stream
write    every change of it; a scope's name is `SCOPE/`, a stream's `SCOPE/STREAM`
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.access.delegation import delegate
from penstock.access.principals import Principal, Role
from penstock.pravega.ledger import Keeper
from penstock.pravega.machine import (
    Abort,
    Begin,
    Command,
    Commit,
    CreateScope,
    CreateStream,
    DeleteScope,
    DeleteStream,
    NoteTime,
    Reason,
    Refusal,
    RemoveWriter,
    Scale,
    SealStream,
    TruncateStream,
    UpdateStream,
    found,
)
from penstock.pravega.messages import CLASSES, Code, Ping, ScaleStatus, TransactionState
from penstock.pravega.settings import ControllerSettings
from penstock.pravega.state import Config, Segment, Stream, segment_name
from penstock.protocol.stored.names import InputOf
from penstock.store.store import SegmentStore
from penstock.store.table import SegmentTable

Method = Callable[[Any, "Caller"], Any]

_UPDATE_CODES = {Reason.NO_STREAM: 2, Reason.NO_SCOPE: 3}
_TXN_CODES = {Reason.NO_STREAM: 2, Reason.NO_SCOPE: 2, Reason.NO_TRANSACTION: 3}
_TIME_CODES = {Reason.PRECONDITION: 1, Reason.NO_SEGMENT: 2}
_LOW_BITS = 63
"""Of a transaction's id: a client takes the lower half for a signed number, and extends its sign."""
_MASK = 2**64 - 1


class Caller:
    """Who asks, and with which token."""

    def __init__(self, principal: Principal, token: str, table: SegmentTable) -> None:
        self.principal = principal
        self.token = token
        self._table = table

    def check_count(self, new: int) -> None:
        """Before so many segments are created. Raises QuotaReached if it would have too many."""
        if self.principal.quota_bytes is not None:
            self.principal.check_count(self._table.measure(InputOf(self.principal.prefixes)).count, new)

    def check(self, role: Role, scope: str, stream: str = "") -> None:
        """Raises Forbidden."""
        self.principal.check(role, f"{scope}/{stream}", f"stream {scope}/{stream}" if stream else f"scope {scope!r}")


class Service:
    """All methods but `expire` are of the public service, with its names."""

    def __init__(self, store: SegmentStore, keeper: Keeper, settings: ControllerSettings, segment_port: int) -> None:
        self._store = store
        self._keeper = keeper
        self._settings = settings
        self._segment_port = segment_port
        self._deadlines: dict[tuple[str, str, str], float] = {}
        """When a transaction is aborted, unless its writer pings it; not in the ledger: after a restart, the lease of
        each begins again."""
        self._noted: dict[tuple[str, str, str], float] = {}
        """When a writer has noted its last time. The same."""

    # Scopes.

    def createScope(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        caller.check(Role.WRITE, request.scope)
        codes = {Reason.SCOPE_EXISTS: 2, Reason.INVALID_NAME: 3}
        return self._status(CreateScope(request.scope), codes)

    def deleteScope(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        caller.check(Role.WRITE, request.scope)
        return self._status(DeleteScope(request.scope), {Reason.NO_SCOPE: 2, Reason.NOT_EMPTY: 3})

    def listScopes(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        names = (name for name in self._keeper.state.scopes if caller.principal.may(Role.READ, f"{name}/"))
        page, token = self._page(names, request.continuationToken.token)
        return CLASSES["ScopesResponse"](scopes=page, continuationToken={"token": token})

    def checkScopeExists(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        caller.check(Role.READ, request.scope)
        return CLASSES["ExistsResponse"](exists=request.scope in self._keeper.state.scopes)

    def listStreamsInScope(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        return self._streams(request, caller, lambda _: True)

    def listStreamsInScopeForTag(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        return self._streams(request, caller, lambda stream: request.tag in (stream.config.tags or ()))

    def _streams(self, request: Any, caller: Caller, is_wanted: Callable[[Stream], bool]) -> Any:
        scope = request.scope.scope
        streams = self._keeper.state.scopes.get(scope)
        if streams is None:
            return CLASSES["StreamsInScopeResponse"](status=2)
        may = caller.principal.may
        names = (name for name, one in streams.items() if may(Role.READ, f"{scope}/{name}") and is_wanted(one))
        page, token = self._page(names, request.continuationToken.token)
        found_ = [{"scope": scope, "stream": name} for name in page]
        return CLASSES["StreamsInScopeResponse"](streams=found_, continuationToken={"token": token})

    def _page(self, names: Iterable[str], after: str) -> tuple[list[str], str]:
        """Some names, and the token for the next page."""
        page = sorted(name for name in names if name > after)[: self._settings.page]
        return page, page[-1] if page else after

    # Streams.

    def createStream(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request.streamInfo, caller, Role.WRITE)
        caller.check_count(max(request.scalingPolicy.minNumSegments, 1))
        codes = {Reason.STREAM_EXISTS: 2, Reason.NO_SCOPE: 3, Reason.INVALID_NAME: 4}
        return self._status(CreateStream(scope, stream, _config(request)), codes)

    def updateStream(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request.streamInfo, caller, Role.WRITE)
        return self._status(UpdateStream(scope, stream, _config(request)), _UPDATE_CODES)

    def truncateStream(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request.streamInfo, caller, Role.WRITE)
        return self._status(TruncateStream(scope, stream, _cut(request)), _UPDATE_CODES)

    def sealStream(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request, caller, Role.WRITE)
        return self._status(SealStream(scope, stream), _UPDATE_CODES)

    def deleteStream(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request, caller, Role.WRITE)
        codes = {Reason.NO_STREAM: 2, Reason.NO_SCOPE: 2, Reason.NOT_SEALED: 3}
        return self._status(DeleteStream(scope, stream), codes)

    def checkStreamExists(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, stream = self._named(request, caller)
        return CLASSES["ExistsResponse"](exists=stream in self._keeper.state.scopes.get(scope, {}))

    def getStreamConfiguration(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        config = self._stream(request, caller).config
        scaling = {
            "scaleType": config.scale_type,
            "targetRate": config.target_rate,
            "scaleFactor": config.scale_factor,
            "minNumSegments": config.segments_min,
        }
        retention = {
            "retentionType": config.retention_type,
            "retentionParam": config.retention,
            "retentionMax": config.retention_max,
        }
        reply = CLASSES["StreamConfig"](streamInfo=request, scalingPolicy=scaling, retentionPolicy=retention)
        reply.timestampAggregationTimeout = config.writer_timeout_ms
        if config.tags is not None:
            reply.tags.tag.extend(config.tags)
            reply.tags.SetInParent()
        return reply

    # Segments.

    def getControllerServerList(self, request: Any, caller: Caller) -> Any:  # noqa: N802, ARG002
        return CLASSES["ServerResponse"]()

    def getCurrentSegments(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        return self._ranges(request, self._stream(request, caller).active, caller)

    def getEpochSegments(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        stream = self._stream(request.streamInfo, caller)
        if not stream.first <= request.epoch <= stream.epoch:
            raise Refusal(Reason.NO_STREAM, f"there is no epoch {request.epoch}")
        return self._ranges(request.streamInfo, stream.epochs[request.epoch - stream.first], caller)

    def getSegments(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        """At the head of the stream; Pravega has other times, too, with what its retention keeps of them."""
        info = request.streamInfo
        locations = [
            {"segmentId": _id(info, number), "offset": max(offset, self._start(info, number))}
            for number, offset in self._stream(info, caller).head().items()
        ]
        return CLASSES["SegmentsAtTime"](segments=locations, delegationToken=self._token(caller))

    def _start(self, info: Any, number: int) -> int:
        """Byte streams are truncated without the controller."""
        name = segment_name(info.scope, info.stream, number)
        return self._store.info(name).start if self._store.exists(name) else 0

    def getSegmentsImmediatelyFollowing(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        info = request.streamInfo
        successors = self._stream(info, caller).successors(request.segmentId)
        entries = [{"segment": _range(info, one), "value": before} for one, before in successors.items()]
        return CLASSES["SuccessorResponse"](segments=entries, delegationToken=self._token(caller))

    getSegmentsImmediatlyFollowing = getSegmentsImmediatelyFollowing  # noqa: N815  its older spelling

    def getURI(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        """Of any segment: the tables of reader groups belong to no stream."""
        self._named(request.streamInfo, caller)
        port = self._settings.segment_port or self._segment_port
        return CLASSES["NodeUri"](endpoint=self._settings.segment_host, port=port)

    def isSegmentValid(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        stream = self._stream(request.streamInfo, caller)
        return CLASSES["Validity"](response=any(one.id == request.segmentId for one in stream.active))

    def isStreamCutValid(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        existing = self._stream(request.streamInfo, caller).existing()
        return CLASSES["Validity"](response=_cut(request).keys() <= existing.keys())

    def getDelegationToken(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        self._named(request, caller)
        return CLASSES["DelegationToken"](delegationToken=self._token(caller))

    def scale(self, request: Any, caller: Caller) -> Any:
        info = request.streamInfo
        scope, name = self._named(info, caller, Role.WRITE)
        caller.check_count(len(request.newKeyRanges))
        ranges = tuple((one.start, one.end) for one in request.newKeyRanges)
        try:
            self._keeper.commit(Scale(scope, name, tuple(request.sealedSegments), ranges))
        except Refusal as refusal:
            return CLASSES["ScaleResponse"](status=2 if refusal.reason is Reason.PRECONDITION else Code.FAILURE)
        stream = found(self._keeper.state, scope, name)
        new = [_range(info, one) for one in stream.active if one.epoch == stream.epoch]
        return CLASSES["ScaleResponse"](segments=new, epoch=stream.epoch)

    def checkScale(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        """A scaling is done when it has begun."""
        is_known = request.epoch <= self._stream(request.streamInfo, caller).epoch
        return CLASSES["Status"](status=ScaleStatus.SUCCESS if is_known else ScaleStatus.INVALID_INPUT)

    # Transactions.

    def createTransaction(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, name = self._named(request.streamInfo, caller, Role.WRITE)
        stream = found(self._keeper.state, scope, name)
        caller.check_count(len(stream.active))
        lease_ms = min(max(request.lease, 1), self._settings.lease_ms_max)
        high = stream.epoch << 32 | secrets.randbits(32)
        low = secrets.randbits(_LOW_BITS)
        transaction = f"{high:016x}{low:016x}"
        self._keeper.commit(Begin(scope, name, transaction, lease_ms))
        self._deadlines[scope, name, transaction] = time.monotonic() + lease_ms / 1000
        return CLASSES["CreateTxnResponse"](
            txnId={"highBits": _signed(high), "lowBits": low},
            activeSegments=[_range(request.streamInfo, one) for one in stream.active],
            delegationToken=self._token(caller),
        )

    def pingTransaction(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, name = self._named(request.streamInfo, caller, Role.WRITE)
        stream, transaction = found(self._keeper.state, scope, name), _transaction(request)
        if transaction in stream.ended:
            return CLASSES["Status"](status=Ping.COMMITTED if stream.ended[transaction] else Ping.ABORTED)
        if transaction not in stream.transactions:
            return CLASSES["Status"](status=Ping.UNKNOWN)
        if request.lease > self._settings.lease_ms_max:
            return CLASSES["Status"](status=Ping.LEASE_TOO_LARGE)
        self._deadlines[scope, name, transaction] = time.monotonic() + request.lease / 1000
        return CLASSES["Status"](status=Ping.OK)

    def commitTransaction(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        """A commit that is repeated, because its reply was lost, is a success."""
        scope, name = self._named(request.streamInfo, caller, Role.WRITE)
        transaction = _transaction(request)
        if self._has_ended(scope, name, transaction, committed=True):
            return CLASSES["Status"]()
        writer = request.writerId
        try:
            self._keeper.commit(Commit(scope, name, transaction, writer, request.timestamp))
        except Refusal as refusal:
            return CLASSES["Status"](status=_TXN_CODES.get(refusal.reason, Code.FAILURE))
        self._deadlines.pop((scope, name, transaction), None)
        self._noted[scope, name, writer] = time.monotonic()
        return CLASSES["Status"]()

    def abortTransaction(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, name = self._named(request.streamInfo, caller, Role.WRITE)
        transaction = _transaction(request)
        if self._has_ended(scope, name, transaction, committed=False):
            return CLASSES["Status"]()
        self._deadlines.pop((scope, name, transaction), None)
        return self._status(Abort(scope, name, transaction), _TXN_CODES)

    def _has_ended(self, scope: str, name: str, transaction: str, *, committed: bool) -> bool:
        stream = self._keeper.state.scopes.get(scope, {}).get(name)
        return stream is not None and stream.ended.get(transaction) is committed

    def checkTransactionState(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        stream, transaction = self._stream(request.streamInfo, caller), _transaction(request)
        state = TransactionState.OPEN if transaction in stream.transactions else TransactionState.UNKNOWN
        if transaction in stream.ended:
            state = TransactionState.COMMITTED if stream.ended[transaction] else TransactionState.ABORTED
        return CLASSES["TxnState"](state=state)

    def expire(self, now: float) -> None:
        """Abort the transactions whose writers have not pinged them in time, and forget the writers that have noted no
        time for too long.
        """
        self._expire_transactions(now)
        self._expire_writers(now)

    def _expire_writers(self, now: float) -> None:
        streams = (
            (scope, name, stream)
            for scope, streams in self._keeper.state.scopes.items()
            for name, stream in streams.items()
        )
        allowed = {
            (scope, name, writer): stream.config.writer_timeout_ms / 1000 or self._settings.writer_seconds
            for scope, name, stream in streams
            for writer in stream.times
        }
        self._noted = {key: self._noted.get(key, now) for key in allowed}
        for key in [key for key, noted in self._noted.items() if noted + allowed[key] < now]:
            self._keeper.commit(RemoveWriter(*key))

    def _expire_transactions(self, now: float) -> None:
        open_ = {
            (scope, name, key): one
            for scope, streams in self._keeper.state.scopes.items()
            for name, stream in streams.items()
            for key, one in stream.transactions.items()
        }
        self._deadlines = {
            key: self._deadlines.get(key, now + transaction.lease_ms / 1000) for key, transaction in open_.items()
        }
        for key in [key for key, deadline in self._deadlines.items() if deadline < now]:
            self._keeper.commit(Abort(*key))

    # Writers.

    def noteTimestampFromWriter(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, name = self._named(request.position.streamInfo, caller, Role.WRITE)
        try:
            self._keeper.commit(NoteTime(scope, name, request.writer, request.timestamp, _cut(request.position)))
        except Refusal as refusal:
            return CLASSES["Result"](result=_TIME_CODES.get(refusal.reason, 3))
        self._noted[scope, name, request.writer] = time.monotonic()
        return CLASSES["Result"]()

    def removeWriter(self, request: Any, caller: Caller) -> Any:  # noqa: N802
        scope, name = self._named(request.stream, caller, Role.WRITE)
        try:
            self._keeper.commit(RemoveWriter(scope, name, request.writer))
        except Refusal:
            return CLASSES["Result"](result=Code.FAILURE)
        return CLASSES["Result"]()

    # What they share.

    def _named(self, info: Any, caller: Caller, role: Role = Role.READ) -> tuple[str, str]:
        caller.check(role, info.scope, info.stream)
        return info.scope, info.stream

    def _stream(self, info: Any, caller: Caller) -> Stream:
        return found(self._keeper.state, *self._named(info, caller))

    def _status(self, command: Command, codes: Mapping[Reason, int]) -> Any:
        try:
            self._keeper.commit(command)
        except Refusal as refusal:
            return CLASSES["Status"](status=codes.get(refusal.reason, Code.FAILURE))
        return CLASSES["Status"]()

    def _ranges(self, info: Any, segments: Iterable[Segment], caller: Caller) -> Any:
        ranges = [_range(info, one) for one in segments]
        return CLASSES["SegmentRanges"](segmentRanges=ranges, delegationToken=self._token(caller))

    def _token(self, caller: Caller) -> str:
        return delegate(caller.token, int(time.time()) + self._settings.token_seconds)


def _id(info: Any, number: int) -> Any:
    return CLASSES["SegmentId"](streamInfo={"scope": info.scope, "stream": info.stream}, segmentId=number)


def _range(info: Any, segment: Segment) -> Any:
    return CLASSES["SegmentRange"](segmentId=_id(info, segment.id), minKey=segment.low, maxKey=segment.high)


def _cut(request: Any) -> dict[int, int]:
    return {one.key: one.value for one in request.cut}


def _config(request: Any) -> Config:
    scaling, retention = request.scalingPolicy, request.retentionPolicy
    return Config(
        scaling.scaleType,
        scaling.targetRate,
        scaling.scaleFactor,
        scaling.minNumSegments,
        retention.retentionType,
        retention.retentionParam,
        retention.retentionMax,
        tuple(request.tags.tag) if request.HasField("tags") else None,
        max(request.timestampAggregationTimeout, 0),
    )


def _transaction(request: Any) -> str:
    return f"{request.txnId.highBits & _MASK:016x}{request.txnId.lowBits & _MASK:016x}"


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
