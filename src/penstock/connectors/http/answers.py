"""Answers to requests, and how the events of a reply become one. No I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

REASON = "reason"
"""In the metadata of a letter: why its event could not be processed."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,4096}")

_NOT_THEIRS = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that are the connection's, or are told otherwise."""

_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False
    """The connection ends with it."""


def says(status: HTTPStatus, text: str, *headers: tuple[str, str], closes: bool = False) -> Answer:
    """An answer in words."""
    return Answer(status, f"{text}\n".encode(), (("content-type", "text/plain; charset=utf-8"), *headers), closes)


def refusal(reasons: Iterable[str]) -> Answer:
    """Of events that are letters now."""
    return says(HTTPStatus.BAD_REQUEST, "\n".join(dict.fromkeys(reasons)) or "it could not be processed")


def reply(
    body: bytes, metadata: Iterable[Mapping[str, Any]], content_type: str, request_headers: Mapping[str, str]
) -> Answer:
    """What a pipeline has made: `status`, `content_type` and `headers` in the events' metadata are honoured, the last
    one of each. Headers that are still the request's own are not sent back.
    """
    status, headers = int(HTTPStatus.OK), dict[str, str]()
    for one in metadata:
        status = _status(one.get("status")) or status
        content_type = _text(one.get("content_type")) or content_type
        if isinstance(told := one.get("headers"), Mapping) and told != request_headers:
            headers |= dict(_headers(told))
    if status in _WITHOUT_BODY:
        return Answer(status, b"", tuple(headers.items()))
    return Answer(status, body, (("content-type", content_type), *headers.items()))


def _status(told: Any) -> int | None:
    """Of an answer that is whole: one that only begins is not a pipeline's to give."""
    try:
        status = int(told)
    except (TypeError, ValueError):
        return None
    return status if 200 <= status <= 599 else None


def _text(told: Any) -> str:
    return told if isinstance(told, str) and _VALUE.fullmatch(told) else ""


def _headers(told: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        is_theirs = isinstance(name, str) and _TOKEN.fullmatch(name) and name.lower() not in _NOT_THEIRS
        if is_theirs and (text := _text(value)):
            yield name.lower(), text
