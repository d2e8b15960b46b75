"""Requests from one shard process to another: HTTP connections that stay open, in the event loop."""

import asyncio
import http.client
import json
import ssl
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.client.coordinator.connection import error_of
from penstock.client.credentials import https_context, parse_worker
from penstock.client.segments.failures import Interrupted
from penstock.coordinator.shards import ShardDirectory
from penstock.core.address import Address
from penstock.core.errors import PenstockError, ProtocolError, Unavailable
from penstock.protocol.api.codec import decode_reply, encode

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""Without an answer for so long, the process at the address does not serve the shard any more, or hangs."""

IDLE_MAX = 8
"""Connections to one process that are kept open while nothing uses them: one for each long poll at a time."""

_HEAD_BYTES_MAX = 64 << 10
_BODY_BYTES_MAX = 256 << 20
"""As of other clients of a worker; a reply to a follower has a few megabytes."""

_BROKEN = OSError, EOFError, ValueError, LookupError
"""Raised if a connection ends early, or its reply is not HTTP."""


class _Connection:
    """One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, request: bytes) -> tuple[int, bytes, bool]:
        """Status and body of the reply, and whether the connection stays open."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        headers = _headers(rest)
        length = int(headers.get("content-length", "-1"))
        if not 0 <= length <= _BODY_BYTES_MAX:
            raise http.client.HTTPException(f"a reply of {length} bytes")
        body = await self._reader.readexactly(length)
        return int(first.split(b" ", 2)[1]), body, headers.get("connection", "").lower() != "close"

    def close(self) -> None:
        self._writer.close()


def _headers(data: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in data.decode("latin-1").split("\r\n") if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


class HttpShardWire:
    """As `ShardWire`. `find` is asked again whenever the process at the last address does not answer as the owner."""

    def __init__(self, directory: ShardDirectory, tls: Callable[[str], ssl.SSLContext] = https_context) -> None:
        self._directory = directory
        self._tls = tls
        self._idle: dict[str, list[_Connection]] = {}
        self._known: dict[int, str] = {}
        self._is_closed = False

    async def ask(self, shard: int, path: str, request: msgspec.Struct, reply: type[T], wait_seconds: float = 0.0) -> T:
        worker = self._known.get(shard) or await self._find(shard)
        try:
            data = await self._exchange(worker, path, encode(request), ANSWER_SECONDS + wait_seconds)
        except PenstockError:  # also a refusal: something else may listen there now
            self._known.pop(shard, None)
            self._close(worker)
            raise
        return decode_reply(data, reply)

    async def _find(self, shard: int) -> str:
        found = await self._directory.find(shard)
        if found is None:
            raise Unavailable(f"no worker serves shard {shard}", "Start a worker with the same --store.")
        self._known[shard] = found.http
        return found.http

    async def _exchange(self, worker: str, path: str, body: bytes, seconds: float) -> bytes:
        address, is_tls = parse_worker(worker)
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {self._directory.secret}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(seconds):
                status, data = await self._send(worker, address, head.encode() + body, is_tls=is_tls)
        except TimeoutError:
            raise Unavailable(f"{worker} has not answered for {seconds:g} s") from None
        except (*_BROKEN, asyncio.LimitOverrunError, http.client.HTTPException) as error:
            raise Unavailable(f"{worker} cannot be reached: {error}") from error
        if status == http.HTTPStatus.OK:
            return data
        raise _refusal(worker, status, data)

    async def _send(self, worker: str, address: Address, request: bytes, *, is_tls: bool) -> tuple[int, bytes]:
        """Over a connection that is open, if the other side has not closed it; every request may be repeated."""
        while True:
            idle = self._idle.get(worker)
            is_new = not idle
            connection = idle.pop() if idle else await self._connect(address, is_tls=is_tls)
            try:
                status, data, stays = await connection.exchange(request)
            except (OSError, EOFError):
                connection.close()
                if is_new:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            idle = self._idle.setdefault(worker, [])
            if stays and len(idle) < IDLE_MAX and not self._is_closed:
                idle.append(connection)
            else:
                connection.close()
            return status, data

    async def _connect(self, address: Address, *, is_tls: bool) -> _Connection:
        context = self._tls(address.host) if is_tls else None
        return _Connection(
            *await asyncio.open_connection(address.host, address.port, ssl=context, limit=_HEAD_BYTES_MAX)
        )

    async def close(self) -> None:
        self._is_closed = True
        for worker in list(self._idle):
            self._close(worker)

    def _close(self, worker: str) -> None:
        """Those that nothing uses: its port is free once it is gone, and the next process has another one."""
        for connection in self._idle.pop(worker, ()):
            connection.close()


def _refusal(worker: str, status: int, data: bytes) -> PenstockError:
    """A standby, and a process that is stopping, refuse with Unavailable: the shard is elsewhere, or soon will be."""
    try:
        error = error_of(status, json.loads(data))
    except ValueError:
        text = f"{worker} replied {status} with something other than JSON"
        kind = Unavailable if status >= 500 else ProtocolError  # a process that is stopped gives its requests up
        return kind(text, "Is it a worker?")
    return Unavailable(str(error), error.hint) if isinstance(error, Interrupted) else error
