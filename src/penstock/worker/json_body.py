"""The body of a request: read within a limit, and each field checked when it is taken."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from penstock.coordinator.messages import NUMBER_MAX
from penstock.core.errors import LimitExceeded, RequestError

BODY_BYTES_MAX = 64 << 20
"""A merge of 100,000 staged segments takes 10 MB."""

T = TypeVar("T")


async def read_body(request: Request) -> "Body":
    """Raises RequestError for what is no JSON object. That a browser cannot send one without asking is the reason why
    the content type must say so.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            f"the content type is {kind or 'missing'}", "Send JSON, with Content-Type: application/json."
        )
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise LimitExceeded(f"the body is longer than {BODY_BYTES_MAX} bytes")
    try:
        return Body(_decoded(data))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}", "Send a JSON object.") from None


def _decoded(data: bytearray) -> Any:
    """Raises ValueError also for half a character, which JSON can write and UTF-8 cannot; RecursionError."""
    decoded = json.loads(data)
    if b"\\ud" in data.lower():
        json.dumps(decoded, ensure_ascii=False).encode()
    return decoded


class Body:
    """A JSON object whose fields are taken by their type. RequestError for one that is missing or of another."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise RequestError(f"{data!r:.100} is no JSON object", "Send a JSON object.")
        self._data = data

    def get(self, key: str) -> Any:
        if key not in self._data:
            raise RequestError(f"{key!r} is missing", f"It has: {', '.join(map(str, self._data)) or 'nothing'}.")
        return self._data[key]

    def optional(self, key: str, take: Callable[[str], T]) -> T | None:
        """None if it is missing or null."""
        return None if self._data.get(key) is None else take(key)

    def _typed(self, key: str, kind: type[T], what: str) -> T:
        value = self.get(key)
        if type(value) is not kind:
            raise RequestError(f"{key!r} is {value!r:.100}, not {what}")
        return value

    def text(self, key: str) -> str:
        return self._typed(key, str, "a text")

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def number(self, key: str) -> int:
        """A whole one, not negative, of at most 63 bits."""
        value = self._typed(key, int, "a whole number")
        if value < 0:
            raise RequestError(f"{key!r} is {value}, which is negative")
        if value > NUMBER_MAX:
            raise RequestError(f"{key!r} is greater than {NUMBER_MAX}")
        return value

    def integer(self, key: str) -> int:
        """A whole number of at most 63 bits and a sign, like a time before 1970."""
        value = self._typed(key, int, "a whole number")
        if not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise RequestError(f"{key!r} is {value}, which has more than 63 bits")
        return value

    def positive(self, key: str) -> int:
        if (value := self.number(key)) == 0:
            raise RequestError(f"{key!r} is 0", "Leave it out for the default.")
        return value

    def map(self, key: str) -> dict[str, Any]:
        return self._typed(key, dict, "an object")

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "an array")

    def texts(self, key: str) -> list[str]:
        values = self.items(key)
        if not all(isinstance(value, str) for value in values):
            raise RequestError(f"{key!r} is not an array of texts")
        return values
