"""The interface between a connector and the frame that runs it.

    class Options ──▶ parsing, lint, JSON schema, docs          Capabilities ──▶ what links and guarantees are possible
    Connector.run ──Host.open_stream──▶ Stream.send ──▶ interceptors ──▶ admission ──▶ segments        (port `out`)
    Connector.deliver ◀── interceptors ◀── breakers ◀── output segments of pipelines                   (port `in`)
    Connector.make_sink ◀── two-phase commit ◀── output segments of pipelines        (port `in` of transactional types)

Streams, admission, segments, quotas, reconnects with back-off, breakers, metrics and draining belong to the frame.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel

from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.secrets import Mask
from penstock.connectors.url_forms import UrlForm
from penstock.connectors.values import StrictModel
from penstock.coordinator.readiness import NotReady
from penstock.core.errors import PenstockError
from penstock.core.types import Buffer, Guarantee

if TYPE_CHECKING:  # types that do not take whole epochs need no kernels
    from penstock.connectors.sink_api import NonVotingSink, VotingSink
    from penstock.connectors.tables import RowSchema, SchemaOf
    from penstock.protocol.api.delivery import TableDdl


class Port(Enum):
    """A port of a connector."""

    OUT = "out"
    """Events enter the system through it."""
    IN = "in"
    """Events leave through it."""
    ERR = "err"
    """Input that could not become an event, with the reason. It is a separate source that can be linked."""


class Pause(Enum):
    """How finely a source can be paused."""

    STREAM = "stream"
    SESSION = "session"
    """Together with all streams of the same connection."""
    WHOLE = "whole"


class Options(StrictModel):
    """`config:` of a connector or an interceptor. Every field has a description: it is the documentation. Texts may
    come from the environment or from files of secrets: neither `repr` nor errors show them.
    """

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, value if isinstance(value, int | float | Enum | None) else "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """`source` and `sink` are the guarantees of the ports `out` and `in`; None: there is no such port."""

    source: Guarantee | None = None
    sink: Guarantee | None = None
    resumes: bool = False
    """Whether a stream can be opened again at a point of reference. If not, it is forgotten once it is complete."""
    pauses: Pause = Pause.STREAM
    on_stream_started: str = "Opens the stream at once."
    """How the port `in` answers the signal, for the documentation."""
    is_linked: bool = False
    """A reply that leaves through `in` goes to the connection its event came from."""
    own_event_times: bool | None = None
    """Whether events have their own times (`Stream.put` with `event_times_us`). False: the worker sets the time of
    their arrival, and windows over them close by its clock. None: it does so from the first event without a time on, as
    long as none has had its own."""
    has_codec: bool = True
    """Whether it reads and writes bytes, so that a codec must be named."""
    own_interceptors: bool = False
    """The frame does not apply the interceptors of `out` … `in`: the connector calls `Host.outgoing_chain` itself."""
    interceptors: frozenset[str] = frozenset({"in", "out"})
    """The directions that have interceptors: none if the worker handles the events without calling the connector."""
    sends_messages: bool = False
    """Whether each `Stream.send` has one whole message: interceptors that work on whole records can then come first."""
    takes_epochs: bool = False
    """Whether the port `in` receives whole epochs, by `Connector.make_sink`; otherwise `deliver` receives the events of
    one stream at a time."""
    votes: bool = False
    """Whether the port `in` takes part in two-phase commit, so that an epoch is committed at all transactional sinks of
    a pipeline or at none. A sink that does not vote receives an epoch after the decision."""
    partitions: bool = False
    """Whether peers may come to any worker of a cluster: then the streams of its source can be spread over shards."""
    every_worker: bool = False
    """Whether every worker of a cluster can run it (`listen: every-worker`): it listens as `Host.shares_port` says, and
    its streams do not resume."""
    claims: frozenset[str] = frozenset()
    """What only one connector can have, such as `127.0.0.1:9000`: a conflict is reported before the second
    one fails.
    """

    @property
    def ports(self) -> frozenset[Port]:
        found = {Port.OUT, Port.ERR} if self.source is not None else set()
        return frozenset(found | ({Port.IN} if self.sink is not None else set()))


@dataclass(frozen=True, slots=True, order=True)
class StreamRef:
    """A stream anywhere in the system, by the name of its connector and its id there."""

    connector: str
    stream_id: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events of one stream on their way out, in order, after the interceptors. Never empty."""

    stream: StreamRef | None
    """The stream of the events; None if they belong to no single one, such as a window's result."""
    values: Sequence[bytes]
    ids: Sequence[int]
    """The id of the last event in each value; 0 if there is no stream."""
    keys: Sequence[bytes] = ()
    """One for each value if no interceptor has joined values; else empty. This also applies to the following fields."""
    event_times_us: Sequence[int | None] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    name: str = ""
    """`pipeline:incarnation:epoch/number` of its last row, the same when it is delivered again; it may then start
    earlier or later, so a value is identified by its distance from the end."""


class Lost(PenstockError):
    """The outside cannot be reached now. Raised by `run`: it is called again after a back-off. Raised by `deliver`: the
    whole sink receives nothing until a probe succeeds, and then the same events again.
    """


class StreamLost(Lost):
    """Raised by `deliver`: only this stream's own connection is lost; the stream is closed, and its stored events are
    retained.
    """


class StreamGone(PenstockError):
    """Raised by `deliver`: the stream will never come back, or refuses the events for good. They become dead letters:
    all of them, or only the values at these places if the others have left.
    """

    def __init__(self, message: str, hint: str | None = None, *, places: Sequence[int] | None = None) -> None:
        super().__init__(message, hint)
        self.places = places


class StreamState(Enum):
    """How far a stream that resumes is, by its name."""

    UNKNOWN = "unknown"
    """There was none of this name, or it is forgotten."""
    STARTED = "started"
    """It continues at its position when it is opened again."""
    ENDED = "ended"
    """Everything of it is stored."""
    COMPLETE = "complete"
    """And every pipeline has completed an epoch that contains its last event."""


class Stream(Protocol):
    """An ordered sequence of events into the system, while it is open."""

    @property
    def ref(self) -> StreamRef: ...

    @property
    def name(self) -> str: ...

    @property
    def position(self) -> int:
        """For a stream that resumes and is sent as bytes: how many of them are stored as events. The next `send` must
        start there.
        """

    @property
    def last_id(self) -> int:
        """The last id of the stored events, as passed to `put` or counted; 0 if there is none."""

    async def ready(self) -> None:
        """Returns when it may send: all sinks downstream have opened it, it is not paused, and there is room. Wait for
        this before reading from the peer, so that nothing is buffered without bound.
        """

    @property
    def may_send(self) -> bool:
        """Whether `ready` would return immediately."""

    async def send(self, data: Buffer, *, metadata: Mapping[str, Any] | None = None) -> int:
        """Raw bytes, any part of a record or many records: interceptors turn them into events, which are stored in one
        step. Waits like `ready`. Returns the id of the stream's last event so far; 0 while there is none.
        """

    async def send_all(self, messages: Sequence[bytes]) -> int:
        """Whole messages, each like one `send`, which are stored together: for a connector with `sends_messages` that
        has read several. Waits and returns like `send`.
        """

    async def put(
        self,
        values: Sequence[bytes],
        *,
        ids: Sequence[int] | None = None,
        event_times_us: Sequence[int] | None = None,
        keys: Sequence[bytes] | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Whole events, bypassing the interceptors. `ids` are strictly increasing; events that are stored already are
        dropped and counted. Without `ids`, events are numbered consecutively. Events may share a mapping of metadata:
        it is encoded once. Waits and returns like `send`.
        """

    def encoded(self, metadata: Mapping[str, Any]) -> bytes:
        """Metadata for `Host.store_together`, with the stream's own. Raises RequestError, LimitExceeded."""

    async def dead_letter(self, data: bytes, reason: str, *, event_id: int | None = None) -> None:
        """Stores what cannot become an event, with the reason; the stream continues. With the id that the event would
        have, the stream continues after it: `last_id` is at least this, and a dead letter up to there is dropped.
        """

    async def finish(self) -> int:
        """The peer has sent everything, or this request is over: what interceptors buffer becomes an event, or a dead
        letter if it is only a part of one. Returns the last id, like `send`.
        """

    async def cut_off(self, reason: str) -> None:
        """The peer is gone, or is no longer read, perhaps in the middle of a record. Whole records that interceptors
        buffer become events, and the rest a dead letter with this reason; a stream that resumes reads both again
        instead. Then call `close`.
        """

    async def durable(self, event_id: int) -> None:
        """Returns when all events up to this one are on disk."""

    async def complete(self, event_id: int) -> None:
        """Returns when they may be acknowledged, according to the connector's `ack`: `durable`, or every pipeline on it
        has completed an epoch that contains them.
        """

    async def close(self) -> None:
        """Calls `finish` if that was not done yet. The stream has ended: `stream-closed` follows its last event to
        every sink. A stream that resumes and was not finished has not ended: it continues at its position when it is
        opened again. Idempotent.
        """


class Together(Protocol):
    """What was stored together."""

    @property
    def ids(self) -> Sequence[int | None]:
        """The id of each event; None: its stream would have had to wait, and nothing of it is stored."""

    async def complete(self) -> None:
        """Returns when all of them may be acknowledged, like `Stream.complete`."""


class OutgoingChain(Protocol):
    """The outgoing interceptors, for one sequence of events. It has no timer: its owner decides when to flush."""

    def feed(self, values: Sequence[bytes]) -> list[bytes]: ...

    def flush(self) -> list[bytes]: ...


class Downstream(Protocol):
    """The pipelines that read a connector's port `out`, if its events are acknowledged by them."""

    def not_ready(self) -> NotReady | None:
        """Why events would wait, because Spark is starting or does not run; None: all pipelines accept events."""

    def is_waited_for(self, *, by_all: bool) -> bool:
        """Whether events should wait: because none of the pipelines runs, or, with `by_all`, because one is starting. A
        failed or stopped pipeline does not keep events from the others.
        """

    async def ready(self, *, by_all: bool) -> None:
        """Returns when `is_waited_for` is false."""

    def is_on_first_epoch(self, *, by_all: bool) -> bool:
        """With `by_all`, whether one of them has processed no event since its start; otherwise, whether none of them
        has. The first epoch takes far longer than later ones.
        """

    async def warm(self, *, by_all: bool) -> None:
        """Returns when `is_on_first_epoch` is false."""


class NoPipelines:
    """No pipelines to wait for: events are acknowledged when they are stored."""

    def not_ready(self) -> NotReady | None:
        return None

    def is_waited_for(self, *, by_all: bool) -> bool:  # noqa: ARG002
        return False

    async def ready(self, *, by_all: bool) -> None:
        pass

    def is_on_first_epoch(self, *, by_all: bool) -> bool:  # noqa: ARG002
        return False

    async def warm(self, *, by_all: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SegmentPort:
    """Where the worker's own segment server listens, as `host:port`, and the token with which its connectors use it."""

    address: str
    token: str = field(default="", repr=False)


class Host(Protocol):
    """The frame, as one connector sees it. Everything is called in the worker's event loop."""

    @property
    def name(self) -> str:
        """The connector's name, with its instance: the `source` of its events."""

    @property
    def has_in(self) -> bool:
        """Whether something is linked to its port `in`: whether there will ever be replies."""

    @property
    def segment_port(self) -> SegmentPort:
        """The segment port of this worker."""

    @property
    def has_out(self) -> bool:
        """Whether something is linked to its port `out`: otherwise what a peer sends is not used."""

    @property
    def downstream(self) -> Downstream:
        """For connectors whose peers wait for an answer: the pipelines that produce it."""

    @property
    def has_interceptors(self) -> bool:
        """Whether interceptors turn what is sent into events; otherwise each `send` is one event."""

    @property
    def takes_messages(self) -> bool:
        """Whether the interceptors must get each message by one `send`, because the first works on whole records."""

    @property
    def shares_port(self) -> bool:
        """Whether other processes of this machine may listen on the same port for this connector: use SO_REUSEPORT."""

    @property
    def is_draining(self) -> bool:
        """Whether reading should stop."""

    async def draining(self) -> None:
        """Returns when nothing more should be read: `run` closes its streams. It may return then, or keep its
        connections for what is still to leave through `in`: a drain waits for the streams, not for `run`, which is
        cancelled later.
        """

    async def open_stream(
        self, name: str, *, resume: bool = False, metadata: Mapping[str, Any] | None = None
    ) -> Stream:
        """A new stream with an id that was never used; with `resume` the stream of this name, at its position. Signals
        `stream-started`. `metadata` (peer, content type …) is stored with all its events. Returns when the start of the
        stream is stored; `Stream.ready` returns when it may send. Raises NoRoom.
        """

    def store_together(self, events: Sequence[tuple[Stream, bytes, bytes]]) -> Together:
        """Stores one whole event of each of many streams at once, without waiting: for a server whose clients send at
        the same time. Each event is its stream, its value and its metadata as `Stream.encoded`. Only for a connector
        without interceptors, and streams that do not resume.
        """

    def stream_names(self) -> list[str]:
        """The streams that resume and are not forgotten, open or not. Of a longer name, the first 200 characters."""

    def stream_state(self, name: str) -> StreamState:
        """Of a stream that resumes."""

    def forget_stream(self, name: str) -> bool:
        """Forget a stream that is COMPLETE: if it is ever opened again, it starts from its beginning. Without this, the
        table of streams grows with every new name. False if there is no such stream.
        """

    def finished(self) -> None:
        """The source has ended for good (a file that is read once): all its windows may close."""

    def connected(self) -> None:
        """It listens, or is connected: the back-off is reset, and the port `in` is open for all streams."""

    def disconnected(self, reason: str) -> None:
        """The port `in` is closed for all streams, until `connected`. A `run` that raises Lost has the same effect."""

    def opened(self, stream: StreamRef) -> None:
        """The answer to `stream_started`: the port `in` accepts this stream's events."""

    def closed(self, stream: StreamRef, reason: str) -> None:
        """It accepts no more events of this stream until `opened`."""

    def outgoing_chain(self) -> OutgoingChain:
        """A new chain, for connectors with `own_interceptors`."""

    def count(self, what: str, amount: int = 1) -> None:
        """Count something in the status and the metrics, such as `bad_requests`."""


O = TypeVar("O", bound=Options)  # noqa: E741  options


def paths_in(value: Any) -> Iterator[Path]:
    """All paths in options, however deep."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from paths_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from paths_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from paths_in(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBy:
    """The tests that show the guarantees of a type's ports, as `tests/FILE.py::NAME`."""

    source: str = ""
    sink: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a type, for people."""

    name: str
    text: str
    """One sentence."""
    options: type[Options]
    capabilities: Capabilities
    extra: str = ""
    """One of Penstock's extras: what must be installed, `pip install penstock-streams[EXTRA]`."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """A valid `config:`."""
    url: UrlForm = field(default_factory=UrlForm)
    """The URL form of a sink of this type."""
    shown_by: ShownBy = field(default_factory=ShownBy)
    """For the documentation. Types in other packages may leave it out."""


class Connector(Generic[O]):
    """One connector. `run` is called in its own task, which is cancelled when the connector is removed."""

    about: ClassVar[About]

    permissions: Permissions = UNLIMITED
    """What the worker allows; set by the frame before anything else is called."""

    mask: Mask = Mask()
    """Hides the values of references in its options; set by the frame, like the permissions."""

    def __init__(self, options: O) -> None:
        self.options = options

    @classmethod
    def check_permitted(cls, options: O, permissions: Permissions) -> None:
        """Checks every `Path` in the options. A type that uses files in any other way checks them itself. Raises
        NotPermitted, a RequestError.
        """
        for path in paths_in(options):
            permissions.check_path(path)

    @classmethod
    def capabilities(cls, options: O) -> Capabilities:  # noqa: ARG003  of this connector; the options may narrow them
        return cls.about.capabilities

    @property
    def reached_at(self) -> str:
        """How events come in from the outside, for people, such as `tcp 127.0.0.1:9000`; "" if there is nothing to
        show.
        """
        return ""

    def make_sink(self, name: str, schema: "SchemaOf") -> "VotingSink | NonVotingSink":
        """The port `in` of a connector that `takes_epochs`: a VotingSink if it votes. It is not open yet. `name` is
        `PIPELINE/SINK`, the same after every restart; `schema` returns the columns of the rows. Raises RequestError.
        """
        raise AssertionError(f"{self.about.name} takes no epochs: {name} {schema}")

    has_table: ClassVar[bool] = False
    """Whether it writes to a table, so that `penstock sink ddl` can print how to create it."""

    @property
    def needs_schema(self) -> bool:
        """Whether the table depends on the columns of the pipeline's rows."""
        return False

    def describe_table(self, schema: "RowSchema") -> "TableDdl":
        """The statements that make the table fit the rows. Opens the database, and raises its errors."""
        raise AssertionError(f"{self.about.name} has no table: {schema}")

    @classmethod
    def source_name(cls, options: O, name: str) -> str | None:  # noqa: ARG003
        """The source that pipelines read instead, such as `segment:NAME`; None: what `run` sends."""
        return None

    async def run(self, host: Host) -> None:
        """Maintain the connection to the outside. Return when a bounded source has ended or everything is drained;
        raise Lost (or OSError) when the connection is gone, to be called again. When cancelled, release everything
        immediately.
        """
        host.connected()
        await host.draining()

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        """A stream has started upstream, before its first event. This call may take long; other streams do not wait."""
        host.opened(stream)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:  # noqa: ARG002
        """The stream has ended; called after its last event."""
        return

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        """Send the events. When this returns, they are delivered, as far as the connector can know. One call at a time.
        Raises Lost, StreamLost, StreamGone.
        """
        raise AssertionError(f"{self.about.name} has no port `in`: {outgoing} {host}")
