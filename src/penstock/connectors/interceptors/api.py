"""What an interceptor is. Each stream has its own, so that none mixes up two streams."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Generic, Protocol, TypeVar

from pydantic import AfterValidator

from penstock.connectors.api import Options
from penstock.core.errors import PenstockError, RequestError


class BadBytes(PenstockError):
    """What came cannot be a record. `data` is kept as a letter, and the stream ends. `records` are whole ones that came
    before it in the same bytes: they are events as any other.
    """

    def __init__(self, message: str, data: bytes, records: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.data = data
        self.records = list(records)


class Incoming(Protocol):
    """From the peer. Bounded: a record over its limit is BadBytes."""

    def feed(self, data: bytes) -> list[bytes]:
        """What is whole now. Raises BadBytes, with all that is left of `data` and of what was held; afterwards nothing
        more is fed.
        """

    @property
    def held(self) -> int:
        """Bytes of its input that no result holds yet."""

    def finish(self) -> list[bytes]:
        """There is no more: what is held is a record. Raises BadBytes where it is only a part of one."""


class OutgoingInterceptor(Protocol):
    """Towards the peer."""

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        """What is ready now: a value may wait for others."""

    @property
    def held(self) -> int:
        """Values that wait."""

    @property
    def counts(self) -> Sequence[int] | None:
        """Of the last `feed` or `flush`: how many values end in each result; None: one in each, and none waits."""

    @property
    def wait_seconds(self) -> float | None:
        """How long the first of them may; None: for ever, until `flush`."""

    def flush(self) -> list[bytes]:
        """What waits, now."""


O = TypeVar("O", bound=Options)  # noqa: E741  options


@dataclass(frozen=True, slots=True)
class AboutInterceptor:
    name: str
    text: str
    options: type[Options]


class Interceptor(Generic[O]):
    """A type of interceptors: makes one for each stream, for one of the two directions or for both."""

    about: ClassVar[AboutInterceptor]

    def __init__(self, options: O) -> None:
        self.options = options

    def incoming(self) -> Incoming | None:
        """None: it cannot stand under `in`."""
        return None

    def outgoing(self) -> OutgoingInterceptor | None:
        """None: it cannot stand under `out`."""
        return None


# Records of a stream: the limits of their size, and delimiters as people write them in YAML.

_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def delimiter_bytes(text: str) -> bytes:
    """With `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xNN` for what they stand for. Raises RequestError."""
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
"""Of one record unless its connector says otherwise: what is kept in memory of a peer that never ends one."""

RECORD_BYTES_LIMIT = 8 << 20
"""The most that a connector may say: an event is stored in one append, which the store limits to 16 MiB."""
