"""The controller's state machine: `apply` is the only place where one state becomes another. No I/O, no clock.

An illegal command raises a Refusal and leaves the state as it was. What must happen to segments is in the Effects.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import msgspec
from msgspec.structs import replace

from penstock.core.errors import RequestError
from penstock.pravega.state import (
    Config,
    Epoch,
    Noted,
    Segment,
    State,
    Stream,
    TimeMark,
    Transaction,
    check_scope,
    check_stream,
    even_ranges,
    new_segments,
    segment_name,
    transaction_name,
)

SCOPES_MAX = 1000
STREAMS_MAX = 10_000
"""Of a scope. All of them are in memory."""
SEGMENTS_MAX = 1000
"""Of a stream that are active at the same time: clients get all of them in one message."""
EPOCHS_MAX = 10_000
"""Of a stream, until it is truncated: each scaling adds one."""
TRANSACTIONS_MAX = 1000
"""Of a stream that are open at the same time: each has a segment for each of the stream's."""
ENDED_MAX = 1000
"""Transactions of a stream that have ended, and whose end clients can still ask for."""
WRITERS_MAX = 1000
"""Of a stream whose times are known; the oldest are forgotten."""
WRITER_CHARS_MAX = 256
"""Of a writer's name."""
REMOVED_MAX = 10_000
"""Segments of a stream that truncations have removed, and whose lengths are known: readers that come later than that
find all of them removed before they were read."""
MARKS_MAX = 1000
"""Marks of time of a stream. If there are more, the older half of them is thinned out: a reader that is far behind gets
its watermark in larger steps."""
_TAGS_MAX, _TAG_CHARS_MAX = 128, 256
_EPSILON = 1e-9
"""Of key ranges: clients compute them in floating point."""


class Reason(Enum):
    SCOPE_EXISTS = "scope exists"
    NO_SCOPE = "scope not found"
    NOT_EMPTY = "scope has streams"
    STREAM_EXISTS = "stream exists"
    NO_STREAM = "stream not found"
    NOT_SEALED = "stream is not sealed"
    SEALED = "stream is sealed"
    NO_TRANSACTION = "transaction not found"
    INVALID_NAME = "name is not valid"
    NO_SEGMENT = "segment not found"
    PRECONDITION = "not possible now"
    LIMIT = "limit reached"


class Refusal(RequestError):
    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# Commands. They are what the ledger contains: fields are added at the end.


class _Command(msgspec.Struct, frozen=True, array_like=True, tag_field="c"):
    pass


class CreateScope(_Command, frozen=True, tag="create scope"):
    scope: str


class DeleteScope(_Command, frozen=True, tag="delete scope"):
    scope: str


class CreateStream(_Command, frozen=True, tag="create"):
    scope: str
    stream: str
    config: Config


class UpdateStream(_Command, frozen=True, tag="update"):
    scope: str
    stream: str
    config: Config


class SealStream(_Command, frozen=True, tag="seal"):
    scope: str
    stream: str


class DeleteStream(_Command, frozen=True, tag="delete"):
    scope: str
    stream: str


class TruncateStream(_Command, frozen=True, tag="truncate"):
    scope: str
    stream: str
    cut: dict[int, int]
    lengths: dict[int, int] = {}
    """Of all segments of the stream that exist."""


class Scale(_Command, frozen=True, tag="scale"):
    scope: str
    stream: str
    sealed: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]


class Begin(_Command, frozen=True, tag="begin"):
    scope: str
    stream: str
    transaction: str
    lease_ms: int


class Commit(_Command, frozen=True, tag="commit"):
    scope: str
    stream: str
    transaction: str
    writer: str = ""
    time: int = 0
    ends: dict[int, int] = {}
    """Where each of the transaction's segments will end in the segment that it is merged into; needed for a time."""


class Abort(_Command, frozen=True, tag="abort"):
    scope: str
    stream: str
    transaction: str


class NoteTime(_Command, frozen=True, tag="time"):
    scope: str
    stream: str
    writer: str
    time: int
    cut: dict[int, int]


class RemoveWriter(_Command, frozen=True, tag="remove writer"):
    """It writes no more, or was silent for too long."""

    scope: str
    stream: str
    writer: str


Command = (
    CreateScope
    | DeleteScope
    | CreateStream
    | UpdateStream
    | SealStream
    | DeleteStream
    | TruncateStream
    | Scale
    | Begin
    | Commit
    | Abort
    | NoteTime
    | RemoveWriter
)


@dataclass(frozen=True, slots=True)
class Effects:
    """What happens to segments. `create` and `delete` skip what is done already, so that a command that was cut short
    can be repeated. The merges are in one journal record with the command.
    """

    create: tuple[str, ...] = ()
    merge: tuple[tuple[str, str], ...] = ()
    """Target and source."""
    seal: tuple[str, ...] = ()
    truncate: tuple[tuple[str, int], ...] = ()
    delete: tuple[str, ...] = ()


Applied = tuple[State, Effects]


def apply(state: State, command: Command) -> Applied:
    match command:
        case CreateScope():
            return _create_scope(state, command)
        case DeleteScope():
            return _delete_scope(state, command)
        case CreateStream():
            return _create_stream(state, command)
        case DeleteStream():
            return _delete_stream(state, command)
        case _:
            stream, effects = _changed(found(state, command.scope, command.stream), command)
            return _with_stream(state, command.scope, command.stream, stream), effects


def _changed(
    stream: Stream,
    command: UpdateStream | SealStream | TruncateStream | Scale | Begin | Commit | Abort | NoteTime | RemoveWriter,
) -> tuple[Stream, Effects]:
    match command:
        case UpdateStream():
            return replace(stream, config=_checked(command.config)), Effects()
        case SealStream():
            return _seal(stream, command)
        case TruncateStream():
            return _truncate(stream, command)
        case Scale():
            return _scale(stream, command)
        case Begin():
            return _begin(stream, command)
        case Commit():
            return _commit(stream, command)
        case Abort():
            return _abort(stream, command)
        case NoteTime():
            return _note_time(stream, command), Effects()
        case RemoveWriter():
            return _remove_writer(stream, command), Effects()
        case _:
            assert_never(command)


def found(state: State, scope: str, stream: str) -> Stream:
    """Raises Refusal."""
    streams = state.scopes.get(scope)
    if streams is None:
        raise Refusal(Reason.NO_SCOPE, f"scope {scope!r} not found")
    if stream not in streams:
        raise Refusal(Reason.NO_STREAM, f"stream {scope}/{stream} not found")
    return streams[stream]


def _with_stream(state: State, scope: str, name: str, stream: Stream | None) -> State:
    streams = {key: one for key, one in state.scopes[scope].items() if key != name}
    if stream is not None:
        streams[name] = stream
    return State({**state.scopes, scope: streams})


# Scopes.


def _create_scope(state: State, command: CreateScope) -> Applied:
    if command.scope in state.scopes:
        raise Refusal(Reason.SCOPE_EXISTS, f"scope {command.scope!r} exists already")
    _valid(check_scope, command.scope)
    if len(state.scopes) >= SCOPES_MAX:
        raise Refusal(Reason.LIMIT, f"there are {SCOPES_MAX} scopes already")
    return State({**state.scopes, command.scope: {}}), Effects()


def _delete_scope(state: State, command: DeleteScope) -> Applied:
    streams = state.scopes.get(command.scope)
    if streams is None:
        raise Refusal(Reason.NO_SCOPE, f"scope {command.scope!r} not found")
    if streams:
        raise Refusal(Reason.NOT_EMPTY, f"scope {command.scope!r} has {len(streams)} streams: delete them first")
    return State({name: one for name, one in state.scopes.items() if name != command.scope}), Effects()


def _valid(check: Callable[[str], str], name: str) -> None:
    try:
        check(name)
    except RequestError as error:
        raise Refusal(Reason.INVALID_NAME, str(error)) from None


# Streams.


def _create_stream(state: State, command: CreateStream) -> Applied:
    scope, name = command.scope, command.stream
    streams = state.scopes.get(scope)
    if streams is None:
        raise Refusal(Reason.NO_SCOPE, f"scope {scope!r} not found")
    if name in streams:
        raise Refusal(Reason.STREAM_EXISTS, f"stream {scope}/{name} exists already")
    _valid(check_stream, name)
    if len(streams) >= STREAMS_MAX:
        raise Refusal(Reason.LIMIT, f"scope {scope!r} has {STREAMS_MAX} streams already")
    config = _checked(command.config)
    count = max(config.segments_min, 1)
    epoch = new_segments(0, 0, even_ranges(count))
    stream = Stream(config, (epoch,), numbers=count)
    return _with_stream(state, scope, name, stream), Effects(create=_names(scope, name, epoch))


def _checked(config: Config) -> Config:
    tags = config.tags or ()
    if config.segments_min > SEGMENTS_MAX:
        raise Refusal(Reason.LIMIT, f"a stream has at most {SEGMENTS_MAX} segments")
    if len(tags) > _TAGS_MAX or any(len(tag) > _TAG_CHARS_MAX for tag in tags):
        raise Refusal(Reason.LIMIT, f"a stream has at most {_TAGS_MAX} tags of {_TAG_CHARS_MAX} characters")
    return config


def _delete_stream(state: State, command: DeleteStream) -> Applied:
    scope, name = command.scope, command.stream
    stream = found(state, scope, name)
    if not stream.is_sealed:
        raise Refusal(Reason.NOT_SEALED, f"stream {scope}/{name} is not sealed")
    return _with_stream(state, scope, name, None), Effects(delete=_names(scope, name, stream.segments().values()))


def _seal(stream: Stream, command: SealStream) -> tuple[Stream, Effects]:
    """Open transactions are aborted: there is no segment left that they could be merged into."""
    effects = Effects(
        seal=_names(command.scope, command.stream, stream.epochs[-1]),
        delete=tuple(
            name
            for key, one in stream.transactions.items()
            for name in _transaction_names(command.scope, command.stream, key, one.segments)
        ),
    )
    ended = _ended(stream, dict.fromkeys(stream.transactions, False))
    return replace(stream, is_sealed=True, transactions={}, ended=ended), effects


def _truncate(stream: Stream, command: TruncateStream) -> tuple[Stream, Effects]:
    known, before = stream.segments(), stream.existing()
    if not command.cut or not command.cut.keys() <= known.keys() or min(command.cut.values()) < 0:
        raise Refusal(Reason.PRECONDITION, "the stream cut has segments that the stream does not have")
    if _covered(known[number].range for number in command.cut) != [(0.0, 1.0)]:
        raise Refusal(Reason.PRECONDITION, "the stream cut does not cover every routing key once")
    if not command.cut.keys() <= before.keys():
        return stream, Effects()  # those are truncated already
    old = stream.cut or {}
    new = {number: max(offset, old.get(number, 0)) for number, offset in command.cut.items()}
    stream = replace(stream, cut=new)
    after = stream.existing()
    gone = [one for number, one in before.items() if number not in after]
    removed = [*stream.removed.items(), *((one.id, command.lengths.get(one.id, 0)) for one in gone)]
    stream = replace(stream, removed=dict(removed[-REMOVED_MAX:]))
    cut = tuple((segment_name(command.scope, command.stream, number), offset) for number, offset in new.items())
    return _forgetful(stream), Effects(truncate=cut, delete=_names(command.scope, command.stream, gone))


def _forgetful(stream: Stream) -> Stream:
    """Without the first epochs, if all that exists of them is in later ones."""
    existing, epochs, first = stream.existing(), stream.epochs, stream.first
    while len(epochs) > 1 and all(one in epochs[1] for one in epochs[0] if one.id in existing):
        epochs, first = epochs[1:], first + 1
    return replace(stream, epochs=epochs, first=first)


def _scale(stream: Stream, command: Scale) -> tuple[Stream, Effects]:
    active = {segment.id: segment for segment in stream.active}
    if not command.sealed or not set(command.sealed) <= active.keys():
        raise Refusal(Reason.PRECONDITION, "a segment that is to be replaced is not active")
    if len(set(command.sealed)) < len(command.sealed):
        raise Refusal(Reason.PRECONDITION, "a segment that is to be replaced is named twice")
    new_ranges = _covered(command.ranges)
    if not new_ranges or new_ranges != _covered(active[number].range for number in command.sealed):
        raise Refusal(Reason.PRECONDITION, "the new key ranges are not those of the replaced segments")
    if len(active) - len(command.sealed) + len(command.ranges) > SEGMENTS_MAX or len(stream.epochs) >= EPOCHS_MAX:
        raise Refusal(Reason.LIMIT, f"a stream has at most {SEGMENTS_MAX} segments and {EPOCHS_MAX} scalings")
    new = new_segments(stream.epoch + 1, stream.numbers, sorted(command.ranges))
    old = [active[number] for number in sorted(command.sealed)]
    epoch = sorted([*(one for one in active.values() if one not in old), *new], key=lambda one: one.low)
    scaled = replace(stream, epochs=(*stream.epochs, tuple(epoch)), numbers=stream.numbers + len(new))
    scope, name = command.scope, command.stream
    return scaled, Effects(create=_names(scope, name, new), seal=_names(scope, name, old))


def _covered(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """What they cover if all are valid and none overlap, otherwise nothing. Rounded, so that results are comparable."""
    covered: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if not 0.0 <= low < high <= 1.0 or (covered and low < covered[-1][1] - _EPSILON):
            return []
        if covered and low <= covered[-1][1] + _EPSILON:
            covered[-1] = covered[-1][0], high
        else:
            covered.append((low, high))
    return [(round(low, 8), round(high, 8)) for low, high in covered]


# Transactions.


def _begin(stream: Stream, command: Begin) -> tuple[Stream, Effects]:
    if stream.is_sealed:
        raise Refusal(Reason.SEALED, f"stream {command.scope}/{command.stream} is sealed")
    if len(stream.transactions) >= TRANSACTIONS_MAX:
        raise Refusal(Reason.LIMIT, f"there are {TRANSACTIONS_MAX} open transactions already")
    begun = Transaction(stream.active, command.lease_ms)
    names = _transaction_names(command.scope, command.stream, command.transaction, begun.segments)
    return replace(stream, transactions={**stream.transactions, command.transaction: begun}), Effects(create=names)


def _opened(stream: Stream, transaction: str) -> Transaction:
    """Raises Refusal."""
    if transaction not in stream.transactions:
        raise Refusal(Reason.NO_TRANSACTION, f"there is no open transaction {transaction}")
    return stream.transactions[transaction]


def _targets(stream: Stream, transaction: Transaction) -> dict[int, int] | None:
    """The active segment for each of a transaction's, by id; None if the stream was scaled since it has begun."""
    active = {segment.range: segment.id for segment in stream.active}
    if any(segment.range not in active for segment in transaction.segments):
        return None
    return {segment.id: active[segment.range] for segment in transaction.segments}


def _commit(stream: Stream, command: Commit) -> tuple[Stream, Effects]:
    """If the stream was scaled since the transaction has begun, it gets an epoch with the transaction's key ranges, and
    one with its own again: the events come after those of all segments before, and before those of all segments after.
    """
    transaction = _opened(stream, command.transaction)
    into = _targets(stream, transaction)
    if into is not None:
        return _merge(stream, command, transaction, into)
    active = stream.active
    stream, first = _replace_all(stream, command, transaction.segments)
    into = _targets(stream, transaction)
    assert into is not None
    stream, merged = _merge(stream, command, transaction, into)
    stream, last = _replace_all(stream, command, active)
    return stream, Effects(first.create + last.create, merged.merge, first.seal + last.seal)


def _replace_all(stream: Stream, command: Commit, like: Epoch) -> tuple[Stream, Effects]:
    old = tuple(one.id for one in stream.active)
    return _scale(stream, Scale(command.scope, command.stream, old, tuple(one.range for one in like)))


def _merge(stream: Stream, command: Commit, transaction: Transaction, into: dict[int, int]) -> tuple[Stream, Effects]:
    scope, name = command.scope, command.stream
    merges = tuple(
        (segment_name(scope, name, into[one.id]), transaction_name(scope, name, one.id, command.transaction))
        for one in transaction.segments
    )
    stream = _without(stream, command.transaction, is_committed=True)
    known = stream.times.get(command.writer)
    if command.writer and command.time and (known is None or known.time < command.time):
        cut = {target: command.ends.get(number, 0) for number, target in into.items()}
        stream = _with_time(stream, command.writer, Noted(command.time, cut))
    return stream, Effects(merge=merges)


def _abort(stream: Stream, command: Abort) -> tuple[Stream, Effects]:
    transaction = _opened(stream, command.transaction)
    names = _transaction_names(command.scope, command.stream, command.transaction, transaction.segments)
    return _without(stream, command.transaction, is_committed=False), Effects(delete=names)


def _without(stream: Stream, transaction: str, *, is_committed: bool) -> Stream:
    rest = {key: one for key, one in stream.transactions.items() if key != transaction}
    return replace(stream, transactions=rest, ended=_ended(stream, {transaction: is_committed}))


def _ended(stream: Stream, now: dict[str, bool]) -> dict[str, bool]:
    return dict([*stream.ended.items(), *now.items()][-ENDED_MAX:])


def _note_time(stream: Stream, command: NoteTime) -> Stream:
    """A writer's time does not go back."""
    known = stream.times.get(command.writer)
    if known is not None and known.time > command.time:
        raise Refusal(Reason.PRECONDITION, f"writer {command.writer!r} has noted {known.time} already")
    if not command.cut.keys() <= stream.segments().keys():
        raise Refusal(Reason.NO_SEGMENT, "the position has segments that the stream does not have")
    return _with_time(stream, command.writer, Noted(command.time, command.cut))


def _with_time(stream: Stream, writer: str, noted: Noted) -> Stream:
    if len(writer) > WRITER_CHARS_MAX:
        raise Refusal(Reason.LIMIT, f"a writer's name has at most {WRITER_CHARS_MAX} characters")
    others = [(key, one) for key, one in stream.times.items() if key != writer]
    return _marked(replace(stream, times=dict([*others, (writer, noted)][-WRITERS_MAX:])))


def _remove_writer(stream: Stream, command: RemoveWriter) -> Stream:
    """It holds the others back no more."""
    if command.writer not in stream.times:
        return stream
    return _marked(replace(stream, times={key: one for key, one in stream.times.items() if key != command.writer}))


def _marked(stream: Stream) -> Stream:
    """With a mark, if the lowest time of the active writers has risen: none of them writes anything before it after the
    position that it has noted.
    """
    time = min((one.time for one in stream.times.values()), default=None)
    if time is None or (stream.marks and time <= stream.marks[-1].time):
        return stream
    cut: dict[int, int] = {}
    for one in stream.times.values():
        cut |= {number: max(offset, cut.get(number, 0)) for number, offset in one.cut.items()}
    marks = (*stream.marks, TimeMark(time, cut))
    if len(marks) > MARKS_MAX:
        half = MARKS_MAX // 2
        marks = (*marks[1:half:2], *marks[half:])
    return replace(stream, marks=marks)


def _names(scope: str, stream: str, segments: Iterable[Segment]) -> tuple[str, ...]:
    return tuple(segment_name(scope, stream, one.id) for one in segments)


def _transaction_names(scope: str, stream: str, transaction: str, segments: Epoch) -> tuple[str, ...]:
    return tuple(transaction_name(scope, stream, one.id, transaction) for one in segments)
