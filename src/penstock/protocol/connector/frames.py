"""Every frame of the connector protocol, one class each. `wire_name` is the document's name, `tag` its number.

Stream ids, message ids and points of reference are unsigned 64-bit numbers, event times signed ones in the unit of the
source. Names and texts are for people: bytes that are not UTF-8 come out as backslash escapes. A received payload is a
slice of the decoded body: bytes if the body is bytes, a view if it is a view.
"""

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import ClassVar, NamedTuple

from penstock.core.errors import ProtocolError, RequestError
from penstock.core.types import Buffer

NOTHING_YET = 2**64 - 1
"""The point of reference in NOTIFY_ACK for a stream never seen before. Zero would swallow a message whose id is 0.
Never in an ACK, and no message may have it as its id."""

SOURCE_VERSION = "0.0.1"
MIGRATING_VERSION = "0.0.1+migrate"
"""From a source that knows MIGRATE: any other "would die of" it."""
SINK_VERSION = "v0.0.1"


class Frame:
    """Base of all frames."""

    __slots__ = ()
    wire_name: ClassVar[str]
    tag: ClassVar[int]


@dataclass(frozen=True, slots=True)
class Hello(Frame):
    """Opens a session. The instance name "allows the connector to be appropriately routed to your pipelines"."""

    wire_name = "HELLO"
    tag = 0
    version: str
    cookie: bytes = field(repr=False)
    program: str
    instance: str


@dataclass(frozen=True, slots=True)
class Ok(Frame):
    """Answers HELLO: the session may stream, with these initial credits."""

    wire_name = "OK"
    tag = 1
    credits: int


@dataclass(frozen=True, slots=True)
class Error(Frame):
    """Either side's last frame: "a short reason meant for the programmer or operator"."""

    wire_name = "ERROR"
    tag = 2
    text: str


@dataclass(frozen=True, slots=True)
class Notify(Frame):
    """Asks to open a stream. The name is "advisory/debugging information only"; the id alone identifies it."""

    wire_name = "NOTIFY"
    tag = 3
    stream_id: int
    name: str
    point_of_reference: int = 0


@dataclass(frozen=True, slots=True)
class NotifyAck(Frame):
    """Answers NOTIFY. With success, the point of reference is the last message id stored, or NOTHING_YET."""

    wire_name = "NOTIFY_ACK"
    tag = 4
    success: bool
    stream_id: int
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class Message(Frame):
    """An application message of an open stream; its ids "are strictly increasing" in a stream."""

    wire_name = "MESSAGE"
    tag = 5
    stream_id: int
    message_id: int
    event_time: int
    key: bytes
    payload: Buffer


class Acked(NamedTuple):
    """Everything in the stream up to and including this message id is complete."""

    stream_id: int
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class Ack(Frame):
    """Adds credits, and reports how far streams are complete. Either may be empty."""

    wire_name = "ACK"
    tag = 6
    credits: int
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class Restart(Frame):
    """Ends the session: the other side reconnects, to this "host:port" unless it is empty."""

    wire_name = "RESTART"
    tag = 7
    address: str = ""


@dataclass(frozen=True, slots=True)
class EndOfStream(Frame):
    """The stream's last frame until it is opened again."""

    wire_name = "EOS_MESSAGE"
    tag = 8
    stream_id: int


@dataclass(frozen=True, slots=True)
class Migrate(Frame):
    """Asks a source to end its streams and continue at another worker. The addendum's tag, 8, is EOS_MESSAGE's."""

    wire_name = "MIGRATE"
    tag = 10
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class MigrateAck(Frame):
    """Sent on the old connection once the new one has shaken hands."""

    wire_name = "MIGRATE_ACK"
    tag = 11


# The default id of a stream.


def stream_id_of(name: str) -> int:
    """The first 8 bytes, big-endian, of the name's SHA-256: an id "should always be a deterministic mapping"."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")


# The two uses of the protocol, and the two sides of a session.


class Use(Enum):
    """What the connector at the other end of the worker is. "WRT the protocol description, roles of worker and
    connector are reversed" for a sink: there the worker initiates.
    """

    SOURCE = "source"
    SINK = "sink"


class Role(Enum):
    """Which side of a session we are: the initiator connects and sends HELLO, the acceptor answers OK."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    @property
    def other(self) -> "Role":
        return Role.ACCEPTOR if self is Role.INITIATOR else Role.INITIATOR


# The units of sources' event times.


class EventTimeUnit(Enum):
    """A source's `event_time_unit`, as multiplier and divisor to microseconds; overflows are clamped."""

    S = (1_000_000, 1)
    MS = (1000, 1)
    US = (1, 1)
    NS = (1, 1000)


# Whose fault it was: `penstock.core.errors.ProtocolError` is the peer's, `LocalProtocolError` is ours.

ERROR_TEXT_SIZE_MAX = 1024
"""Bytes of text in an ERROR that we send: it may quote what a peer sent, and goes into its log."""


class LocalProtocolError(RequestError):
    """We were about to send what the protocol does not allow; nothing was sent, and the state is unchanged."""

    hint = "This is a bug in the program that sends, not in its peer."


def error_frame(error: ProtocolError) -> Error:
    """The ERROR that reports the peer's mistake; a long text is cut."""
    text = str(error).encode("utf-8", "backslashreplace")
    return Error(text[:ERROR_TEXT_SIZE_MAX].decode("utf-8", "ignore"))
