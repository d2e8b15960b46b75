"""The interface of interceptors. Each stream has its own instances."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Generic, Protocol, TypeVar

from pydantic import AfterValidator

from penstock.connectors.api import Options
from penstock.core.errors import PenstockError, RequestError


class BadBytes(PenstockError):
    """The input cannot be a record. `data` becomes a dead letter, and the stream ends. `records` are complete ones that
    came before it in the same bytes: they are events like any others.
    """

    def __init__(self, message: str, data: bytes, records: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.data = data
        self.records = list(records)


class Incoming(Protocol):
    """Bytes from the peer to records. Its memory is bounded: a record over the limit raises BadBytes."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that are complete now. Raises BadBytes, with everything that is left of `data` and of
        what was buffered; afterwards nothing more is fed.
        """

    @property
    def buffered(self) -> int:
        """Bytes of its input that have not been returned yet."""

    def finish(self) -> list[bytes]:
        """There is no more input: return what is buffered as a record. Raises BadBytes if it is only part of one."""


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


O = TypeVar("O", bound=Options)  # noqa: E741  options


@dataclass(frozen=True, slots=True)
class AboutInterceptor:
    name: str
    text: str
    options: type[Options]


class Interceptor(Generic[O]):
    """A type of interceptor: creates one for each stream, for one of the two directions or for both."""

    about: ClassVar[AboutInterceptor]

    def __init__(self, options: O) -> None:
        self.options = options

    def incoming(self) -> Incoming | None:
        """None: it cannot be used under `in`."""
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


# Limits that interceptors share.

RECORD_BYTES_MAX = 4 << 20
"""The default limit of one record: bounds the memory for a peer that never ends one."""

RECORD_BYTES_LIMIT = 8 << 20
"""The most that a connector may set: an event is stored in one append, which the store limits to 16 MiB."""
