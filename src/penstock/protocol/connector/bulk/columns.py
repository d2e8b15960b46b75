"""What bulk decoding returns: columns of a run of messages, and what to do with them.

A column is a numpy array here, an `array.array` in the tests' oracle: both have a length, indices, `tolist()` and the
buffer protocol.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from penstock.core.errors import PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.connector.codec import HEADER, MESSAGE_HEAD, U32, decode, read_length
from penstock.protocol.connector.frames import Message
from penstock.protocol.stored.head import NO_COLUMNS, StreamColumns

HEAD_SIZE = MESSAGE_HEAD.size
"""From a MESSAGE's start to its key."""

DROPPED = 255
"""The route of a message that is not stored."""

ROUTES_MAX = DROPPED


class Column(Protocol):
    """Numbers, one for each message or stream."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, index: int, /) -> Any: ...

    def tolist(self) -> list[int]:
        """As Python's ints."""


class Stop(IntEnum):
    """Why a run of MESSAGE frames ends."""

    END = 0
    """The bytes end there."""
    INCOMPLETE = 1
    """The rest of a frame has not arrived yet."""
    OTHER = 2
    """A frame that is not a MESSAGE starts there; it may be incomplete."""
    MALFORMED = 3
    OVERSIZED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A run of consecutive whole MESSAGE frames in `data`, in order.

    `starts` has one number more than there are messages: a frame ends where the next one starts. All positions count
    from the start of `data`. Once `data` is overwritten, only the numbers remain valid.
    """

    data: Buffer
    start: int
    end: int
    starts: Column
    stream_ids: Column
    message_ids: Column
    event_times: Column
    """As received, in the source's unit."""
    key_sizes: Column
    largest_frame: int
    """The largest length field in the run; 0 when it is empty."""
    stop: Stop

    def __len__(self) -> int:
        return len(self.stream_ids)

    @property
    def size(self) -> int:
        """Bytes of frames."""
        return self.end - self.start

    @property
    def has_event_times(self) -> bool:
        """Whether one of them is not 0."""
        at_once = getattr(self.event_times, "any", None)  # numpy's, where the columns are
        return bool(any(self.event_times.tolist()) if at_once is None else at_once())

    def key_span(self, index: int) -> tuple[int, int]:
        """Where a message's key starts and ends."""
        start = int(self.starts[index]) + HEAD_SIZE
        return start, start + int(self.key_sizes[index])

    def payload_span(self, index: int) -> tuple[int, int]:
        """Where a message's payload starts and ends."""
        return self.key_span(index)[1], int(self.starts[index + 1])

    def message(self, index: int) -> Message:
        """One of them, copied out."""
        view = memoryview(self.data)
        return Message(
            int(self.stream_ids[index]),
            int(self.message_ids[index]),
            int(self.event_times[index]),
            bytes(view[slice(*self.key_span(index))]),
            bytes(view[slice(*self.payload_span(index))]),
        )


def frame_error(data: Buffer, at: int, frame_size_max: int) -> ProtocolError:
    """The plain decoder's error for the malformed frame at `at`, where a run has stopped."""
    view = memoryview(data)
    try:
        length = read_length(view, at, frame_size_max)
        decode(Message.tag, view[at + HEADER.size : at + U32.size + length])
    except ProtocolError as error:
        return error
    raise AssertionError(f"nothing is wrong with the frame at {at}")


I64_MIN, I64_MAX = -(2**63), 2**63 - 1

NO_TIME = I64_MIN
"""The highest event time of a stream without stored messages."""


class Streams(NamedTuple):
    """The streams that a run touched, in the order of their first messages in it."""

    stream_ids: Column
    last_ids: Column
    """The last message id stored, now or before."""
    highest_times: Column
    """Of the messages stored from this run, in microseconds, except those that got their time of arrival instead of one
    from the data; NO_TIME if there are none."""
    routes: Column
    previous_ids: Column
    """The last message id stored before this run, or NOTHING_YET: to restore if storing this run fails. Equal to the
    last one if nothing of this run is to be stored."""


class Totals(NamedTuple):
    """Per route, including that of DROPPED messages."""

    messages: Column
    sizes: Column
    """Bytes of the messages as stored events."""
    streams: Column
    """How many streams have messages to store, or dead letters."""


class Problem(IntEnum):
    """Why not all messages of a run could be checked."""

    NONE = 0
    NOT_OPEN = 1
    RESERVED_ID = 2


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """What to do with the first `count` messages of a run: all of them, unless there is a problem."""

    count: int
    routes: Column
    """For each message the route of its stream, or DROPPED: "Deduplicate with `message id <= last stored`"."""
    event_times: Column
    """In microseconds."""
    streams: Streams
    totals: Totals
    dead: Column
    """For each message, 1 if it is new and has no usable event time: a dead letter, whose route is DROPPED."""
    problem: Problem = Problem.NONE

    def is_new(self, row: int) -> bool:
        """Whether a message is not a duplicate, and was checked."""
        return row < self.count and (self.routes[row] != DROPPED or bool(self.dead[row]))

    def error(self, columns: Columns) -> PenstockError:
        """The error for the message at `count`: the ones before it are valid."""
        stream_id = int(columns.stream_ids[self.count])
        match self.problem:
            case Problem.NOT_OPEN:
                return ProtocolError(f"MESSAGE is not legal for stream {stream_id}: it is not open in this session")
            case Problem.RESERVED_ID:
                return ProtocolError(f"MESSAGE: stream {stream_id}: 2^64-1 is reserved and not a valid message id")
            case Problem.NONE:
                raise AssertionError("nothing is wrong")


@dataclass(frozen=True, slots=True)
class Stored:
    """Events as they are stored in one record, and the record's head with their streams."""

    count: int
    data: memoryview
    streams: StreamColumns


NOTHING_STORED = Stored(0, memoryview(b""), NO_COLUMNS)
