"""What both sides of WebSocket connections can be told."""

from typing import Any, Literal

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.limits import RECORD_BYTES_LIMIT, RECORD_BYTES_MAX
from penstock.connectors.values import SecondsOrOff

_QUEUED_MESSAGES = 4
"""That the library has taken from the socket and nobody has asked for yet: each may be of `message_bytes_max`."""

_WRITE_BUFFER_BYTES = 256 << 10
"""Beyond it sending waits for the peer."""

_CLOSE_SECONDS = 5.0
"""For a peer to answer that the connection closes."""


class WsOptions(Options):
    messages: Literal["text", "binary"] = "text"
    """What leaves is sent as; a value that is not UTF-8 is always binary. Both kinds come in."""
    message_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A peer that sends a longer one loses its connection, with code 1009."""
    ping_interval: SecondsOrOff = 20.0
    """Between two pings to a peer that is being read; `off`: none."""
    ping_timeout: SecondsOrOff = 20.0
    """A peer that does not answer for so long loses its connection, unless we are not reading it; `off`: never."""
    compression: bool = False
    """Whether messages are compressed where the peer can do it; costs some 300 KiB of memory for each connection."""


def connection_arguments(options: WsOptions) -> dict[str, Any]:
    """For the library, without its own pings: they would end a connection that we do not read, and hear no pong of."""
    return {
        "max_size": options.message_bytes_max,
        "max_queue": _QUEUED_MESSAGES,
        "write_limit": _WRITE_BUFFER_BYTES,
        "ping_interval": None,
        "close_timeout": _CLOSE_SECONDS,
        "compression": "deflate" if options.compression else None,
    }
