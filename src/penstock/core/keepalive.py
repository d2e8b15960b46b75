"""TCP keepalive: detects peers that have vanished from the network."""

import asyncio
import socket

_KEEPALIVE_SECONDS_MAX = 32_767
_TIMEOUT_MS_MAX = (1 << 31) - 1
"""The kernel refuses larger values."""


def find_dead_peers(transport: asyncio.Transport, seconds: int) -> None:
    """Close connections to dead peers, so that a half-open session does not lock out its successor."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    third = min(max(1, seconds // 3), _KEEPALIVE_SECONDS_MAX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(seconds * 1000, _TIMEOUT_MS_MAX))
