"""Where a worker listens, and on which machine something runs."""

import ipaddress
from dataclasses import dataclass
from functools import cache

from penstock.core.errors import RequestError
from penstock.core.platforms import BOOT_ID

PORT = 7101
"""The default segment port of a worker."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = PORT) -> "Address":
        """`host`, `host:port`, `[v6]` or `[v6]:port`."""
        host, port = _split(text)
        if not host or (port and not _is_port(port)):
            hint = f"Write host:port, like 127.0.0.1:{default_port} or [::1]:{default_port}."
            raise RequestError(f"{text!r} is not an address", hint)
        return cls(host, int(port) if port else default_port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _split(text: str) -> tuple[str, str]:
    """The host is empty if the text is not an address."""
    if not text.startswith("["):
        host, _, port = text.partition(":")
        return host, port
    host, closed, rest = text[1:].partition("]")
    is_whole = closed and (not rest or rest.startswith(":"))
    return (host, rest.removeprefix(":")) if is_whole else ("", "")


_DIGITS_MAX = 5


def _is_port(text: str) -> bool:
    """The text may be a stranger's, and Python raises ValueError for numbers of some thousand digits."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) < 2**16


def is_loopback(host: str) -> bool:
    """Whether it can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


@cache
def this_machine() -> str:
    """The id of the running kernel, which containers on it share and no other machine has; empty if it has none (only
    Linux does). Equal ids mean that device and inode numbers refer to the same files.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
