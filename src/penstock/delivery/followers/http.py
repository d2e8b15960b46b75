"""`http://…`, `https://…`: a POST for each block."""

import http.client
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.connectors.callback import RowFormat
from penstock.connectors.sink_api import Block, SinkLost
from penstock.connectors.threaded import BlockByBlock

_ANSWER_BYTES_MAX = 64 << 10
"""Of an answer's body: its first line is shown, and the rest is no use to us."""

_SHOWN_CHARS = 200
"""Of what a server says, in a reason."""

_LATER = frozenset({408, 429, *range(500, 600)})
"""The server's own trouble: it will be over by itself. With any other the request is not wanted as it is."""

_CONTENT = {RowFormat.LINES: "text/plain; charset=utf-8", RowFormat.JSON: "application/x-ndjson"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    secure: bool
    host: str
    port: int
    path: str
    """With the query, as it is sent."""
    format: RowFormat = RowFormat.LINES
    timeout_seconds: float = 30.0
    """For connecting, and for every wait for the server."""
    headers_file: Path | None = None
    """Lines `Name: value` that are sent along: the place for tokens. It is read for each connection."""
    ca: Path | None = None
    """The authority of the server's certificate; those of the system otherwise."""


class HttpSink(BlockByBlock):
    """At least once: a 2xx has come for every block. A block that is sent again has the same Idempotency-Key."""

    def __init__(self, options: HttpOptions, name: str) -> None:
        super().__init__(_Poster(options), name)


class _Poster:
    """One connection, kept alive between two blocks."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._connection: http.client.HTTPConnection | None = None
        self._headers: Mapping[str, str] = {}

    def take(self, name: str, block: Block) -> None:
        headers = {"Idempotency-Key": name, "Content-Type": _CONTENT[self._options.format]}
        body = self._options.format.encode(block)
        kept = self._connection is not None
        try:
            self._post(body, headers)
        except _Broken as error:
            if not kept:
                raise SinkLost(str(error)) from None
            self._post_again(body, headers)

    def _post_again(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Servers close connections that are idle: that says nothing of them now."""
        try:
            self._post(body, headers)
        except _Broken as error:
            raise SinkLost(str(error)) from None

    def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        place = f"{self._options.host}:{self._options.port}"
        try:
            connection = self._connected()
            connection.request("POST", self._options.path, body, {**self._headers, **headers})
            answer = connection.getresponse()
            said = answer.read(_ANSWER_BYTES_MAX)
            if answer.will_close or not answer.isclosed():
                self.close()
        except TimeoutError:
            self.close()
            raise SinkLost(f"{place} did not answer within {self._options.timeout_seconds:g} s") from None
        except ValueError as error:  # a header that cannot be sent
            self.close()
            raise SinkLost(f"the request cannot be made: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _Broken(f"{place} cannot be reached: {str(error) or type(error).__name__}") from None
        if not 200 <= answer.status < 300:
            raise SinkLost(f"{place} {_refusal(answer, said)}")

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._headers = _headers(self._options.headers_file)
            self._connection = _connection(self._options)
            self._connection.connect()
        return self._connection

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Broken(Exception):
    """The connection is gone, perhaps only because it was idle."""


def _connection(options: HttpOptions) -> http.client.HTTPConnection:
    if not options.secure:
        return http.client.HTTPConnection(options.host, options.port, timeout=options.timeout_seconds)
    try:
        context = ssl.create_default_context(cafile=options.ca)
    except OSError as error:  # SSLError is one
        raise SinkLost(f"the authority in {options.ca} cannot be used: {error}") from None
    return http.client.HTTPSConnection(options.host, options.port, timeout=options.timeout_seconds, context=context)


def _headers(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SinkLost(f"the headers in {file} cannot be read: {error}") from None
    if not all(colon and name.strip() for name, colon, _ in lines):
        raise SinkLost(f"{file} has a line that is no header: write Name: value")
    return {name.strip(): value.strip() for name, _, value in lines}


def _refusal(answer: http.client.HTTPResponse, said: bytes) -> str:
    """The status, how long the server asks us to wait, and the first line that it says."""
    verb = "cannot now" if answer.status in _LATER else "refuses"
    parts = [f"{verb}: {answer.status} {answer.reason}".rstrip()]
    if wait := answer.getheader("Retry-After"):
        parts.append(f"(try again after {wait if not wait.isdigit() else wait + ' s'})")
    if place := answer.getheader("Location"):
        parts.append(f"(it is at {place})")
    line = next((line for line in said.decode(errors="replace").splitlines() if line.strip()), "")
    return " ".join(parts) + (f": {line.strip()[:_SHOWN_CHARS]}" if line else "")
