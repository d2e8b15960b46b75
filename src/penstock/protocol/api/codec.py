"""JSON bodies to typed values and back, with errors that name the invalid field."""

import re
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from penstock.core.errors import ProtocolError, RequestError
from penstock.core.types import NO_EPOCH

NUMBER_MAX = 2**63 - 1
"""The largest count, of bytes or anything else, that the ledger and Spark can store."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=NUMBER_MAX)]
"""In microseconds since 1970."""
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=NO_EPOCH, le=NUMBER_MAX)]
"""Or NO_EPOCH."""

_AT = re.compile(r" - at `\$\.?(.*)`$")

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all requests' bodies."""


class Empty(Request, frozen=True, kw_only=True):
    """A request without a body."""


class Done(msgspec.Struct, frozen=True):
    """A reply without contents: the request succeeded."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request that was refused, or that has failed."""

    error: str
    hint: str
    """What to do about it."""
    kind: str
    """The error's class in `penstock.core.errors`, which clients of this package raise again."""


def encode(value: Any) -> bytes:
    """Compact JSON; bytes in base64."""
    return msgspec.json.encode(value)


def decode_request(data: bytes | bytearray, kind: type[T]) -> T:
    """Raises RequestError for a body that is not JSON, or not of this type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is not valid: {_sentence(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}", "Send a JSON object.") from None


def decode_reply(data: bytes, kind: type[T]) -> T:
    """Raises ProtocolError for a reply that does not fit this version."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"the worker's answer is not valid: {_sentence(error)}", "Is it a worker of this version?"
        ) from None


def _sentence(error: Exception) -> str:
    """The error with its location first: `limits.bytes: expected …`."""
    text = str(error)
    found = _AT.search(text)
    problem = text[: found.start()] if found else text
    problem = problem[:1].lower() + problem[1:]
    return f"{found[1]}: {problem}" if found and found[1] else problem
