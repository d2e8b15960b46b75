"""Where clients connect to, and what they say of themselves: checked before anything is tried."""

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


def check_url(url: str, plain: str, encrypted: str, *, has_tls: bool) -> None:
    """`plain` and `encrypted` are the schemes it may have. Raises ValueError, whose words hold nothing of it."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in (plain, encrypted) and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or none that can be
        is_whole = False
    if not is_whole or not url.isprintable() or " " in url:
        raise ValueError(f"expected {plain}://HOST… or {encrypted}://HOST…")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a user in a URL is seen by everybody: write an Authorization header")
    if has_tls and parts.scheme == plain:
        raise ValueError(f"tls is for {encrypted}://: with {plain}:// nothing is encrypted")


def is_header_value(value: str) -> bool:
    """Whether it can be sent: one line of ASCII."""
    return _VALUE.fullmatch(value) is not None


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        if not is_header_value(value):
            raise ValueError(f"the header {name} must be one line of ASCII")
    return headers


def _one_line(value: str) -> str:
    if not is_header_value(value):
        raise ValueError("a header must be one line of ASCII")
    return value


HeaderValue = Annotated[str, AfterValidator(_one_line)]
Headers = Annotated[dict[str, str], AfterValidator(_checked)]
