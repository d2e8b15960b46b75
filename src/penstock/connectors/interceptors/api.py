"""The interface of interceptors. Each stream has its own instances."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator

from penstock.connectors.api import Options
from penstock.core.errors import PenstockError, RequestError

if TYPE_CHECKING:
    from penstock.protocol.stored.bulk import Bytes  # here: kernels take a second to import


class BadBytes(PenstockError):
    """The input cannot be a record. `data` becomes a dead letter, and the stream ends. `records` are complete ones that
    came before it in the same bytes: they are events like any others.
    """

    def __init__(self, message: str, data: bytes, records: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.data = data
        self.records = list(records)


class BadRecord(PenstockError):
    """One record cannot be converted. It becomes a dead letter, and the stream continues with the next one."""


class Rejected(NamedTuple):
    """A record that becomes a dead letter, alone."""

    data: bytes
    reason: str


FEED_BYTES = 1 << 19
"""Raw bytes passed to interceptors at once: even with a record per byte, there are fewer records than SINCE_MAX of
`ingest.out_ports.event_ids`."""


class Incoming(ABC):
    """Bytes from the peer to records. Its memory is bounded: a record over the limit raises BadBytes."""

    is_transform: ClassVar[bool] = False
    """Whether it returns the same stream of bytes in another form, and cuts it anywhere. Positions to resume from are
    counted in its output: the peer is read from its beginning, and what was stored is left out."""
    is_timed: ClassVar[bool] = False
    """Whether what it buffers may wait too long: then `expire` is called in time."""
    feed_bytes: ClassVar[int] = FEED_BYTES
    """The most that it is fed at once, where a stream may be cut anywhere."""

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that are complete now. Raises BadBytes, with everything that is left of `data` and of
        what was buffered; afterwards nothing more is fed.
        """

    def feed_whole(self, records: Sequence[bytes]) -> list[bytes] | None:  # noqa: ARG002  most have no other way
        """As `feed` of each of them, if it can be sure that none raises BadBytes; None: it was not fed."""
        return None

    def feed_columns(self, data: bytes) -> "Bytes | None":  # noqa: ARG002
        """As `feed`, without an object for each record, if it can be sure that it does not raise BadBytes; None: it was
        not fed.
        """
        return None

    @property
    @abstractmethod
    def buffered(self) -> int:
        """Bytes of its input that have not been returned yet."""

    @abstractmethod
    def finish(self) -> list[bytes]:
        """There is no more input: return what is buffered as a record. Raises BadBytes if it is only part of one. It
        may be fed again afterwards: the next bytes are the start of something new.
        """

    def cut_off(self) -> tuple[list[bytes], bytes]:
        """There is no more input, perhaps in the middle of a record: the whole records that are buffered, and the
        bytes that may be a part of one.
        """
        if not self.buffered:
            return [], b""
        try:
            return [], b"".join(self.finish())
        except BadBytes as bad:
            return [], b"".join((*bad.records, bad.data))

    def take_rejected(self) -> list[Rejected]:
        """Records that became dead letters since the last call."""
        return []

    def wait_seconds(self) -> float | None:
        """How long what it buffers may still wait; None: nothing does."""
        return None

    def expire(self) -> None:  # noqa: B027  most do not wait
        """Reject what has waited too long."""


class RecordStage(Incoming):
    """Converts each record alone, by `convert`: None drops it, and BadRecord makes it a dead letter."""

    buffered = 0

    def __init__(self, convert: Callable[[bytes], bytes | None]) -> None:
        self._convert = convert
        self._rejected: list[Rejected] = []

    def feed(self, data: bytes) -> list[bytes]:
        return self.feed_whole([data])

    def feed_whole(self, records: Sequence[bytes]) -> list[bytes]:
        convert, results = self._convert, []
        for record in records:
            try:
                found = convert(record)
            except BadRecord as bad:
                self._rejected.append(Rejected(record, str(bad)))
            else:
                if found is not None:
                    results.append(found)
        return results

    def finish(self) -> list[bytes]:
        return []

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = self._rejected, []
        return rejected


class OutgoingInterceptor(Protocol):
    """Values to bytes for the peer."""

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        """Returns what is ready now: a value may wait for others."""

    @property
    def buffered(self) -> int:
        """The number of values that wait."""

    @property
    def counts(self) -> Sequence[int] | None:
        """For the last `feed` or `flush`: how many values end in each result; None: one in each, and none waits."""

    @property
    def wait_seconds(self) -> float | None:
        """How long the first of them may wait; None: until `flush`."""

    def flush(self) -> list[bytes]:
        """Returns what waits."""


class ValueStage:
    """Outgoing: converts each value alone, by `convert`, which raises BadRecord for one that can never be sent."""

    buffered = 0
    counts = None
    wait_seconds = None

    def __init__(self, convert: Callable[[bytes], bytes]) -> None:
        self._convert = convert

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        results = []
        for value in values:
            try:
                results.append(self._convert(value))
            except BadRecord as bad:
                raise BadBytes(str(bad), value) from None
        return results

    def flush(self) -> list[bytes]:
        return []


O = TypeVar("O", bound=Options)  # noqa: E741  options


@dataclass(frozen=True, slots=True)
class AboutInterceptor:
    name: str
    text: str
    options: type[Options]
    extra: str = ""
    """The extra of Penstock that installs what it needs."""


class Interceptor(Generic[O]):
    """A type of interceptor: creates one for each stream, for one of the two directions or for both."""

    about: ClassVar[AboutInterceptor]
    cuts: ClassVar[bool] = False
    """Whether its output consists of records, whatever its input is."""
    takes_parts: ClassVar[bool] = False
    """Whether its records are the same however its input is cut, also where each input is a message."""
    needs_records: bool = False
    """Whether it cannot work on any part of a stream of bytes. It may depend on its options."""

    def __init__(self, options: O) -> None:
        self.options = options

    def incoming(self, *, framed: bool = False) -> Incoming | None:  # noqa: ARG002
        """None: it cannot be used under `in`. `framed`: each input is a whole record, not any part of a stream."""
        return None

    def outgoing(self) -> OutgoingInterceptor | None:
        """None: it cannot be used under `out`."""
        return None


# Records of a stream: the limits of their size, and delimiters as written in YAML.

_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def delimiter_bytes(text: str) -> bytes:
    """With the escapes `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xNN` replaced. Raises RequestError."""
    return _ESCAPE.sub(_meant, text.encode())


def _meant(match: re.Match[bytes]) -> bytes:
    written = match[1]
    if len(written) == 3:
        return bytes.fromhex(written[1:].decode())
    if written not in _ESCAPES:
        raise RequestError(
            f"\\{written.decode(errors='replace')} is not a valid escape", r"Write \n \r \t \0 \\ or \xNN."
        )
    return _ESCAPES[written]


def _checked(text: str) -> str:
    try:
        found = delimiter_bytes(text)
    except RequestError as error:
        raise ValueError(f"{error} ({error.hint.rstrip('.')})") from error
    if not found:
        raise ValueError("a delimiter has at least one byte")
    return text


Delimiter = Annotated[str, AfterValidator(_checked)]

AnyDelimiter = Annotated[str, AfterValidator(lambda text: _checked(text) if text else text)]
"""May also be empty."""


# Limits that interceptors share.

RECORD_BYTES_MAX = 4 << 20
"""The default limit of one record: bounds the memory for a peer that never ends one."""

RECORD_BYTES_LIMIT = 8 << 20
"""The most that a connector may set: an event is stored in one append, which the store limits to 16 MiB."""
