"""The worker's standard input as a stream, and its standard output as a sink."""

import asyncio
import os
import select
from typing import Literal

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing, ShownBy
from penstock.connectors.row_formats import encode
from penstock.connectors.streams import DRAINED, open_when_there_is_room, read_into
from penstock.connectors.url_forms import UrlForm
from penstock.core.types import Guarantee

_STDIN, _STDOUT = 0, 1

_READ_BYTES = 256 << 10
"""Bytes read from standard input at a time."""


class StdioOptions(Options):
    """Standard input and output of the process that runs the connector: `penstock worker`, or the worker that `penstock
    run` starts. With `--worker` it is that worker's terminal, not yours. Only one connector of an application can read
    standard input; when it ends, the source has ended and all its windows close.
    """

    format: Literal["raw", "lines", "json"] = "raw"
    """How events are written. `raw`: the values as the interceptors return them. `lines`: a newline after each value.
    `json`: one object per line, with `id`, `event_time_us`, `key` and `value` (`key_base64`, `value_base64` if they are
    not UTF-8)."""


class Stdio(Connector[StdioOptions]):
    """Standard input is not read unless `out` is linked."""

    about = About(
        name="stdio",
        text="Reads the worker's standard input, and writes to its standard output.",
        options=StdioOptions,
        capabilities=Capabilities(source=Guarantee.AT_MOST_ONCE, sink=Guarantee.AT_LEAST_ONCE, own_event_times=False),
        url=UrlForm(written="stdout:", implied={"format": "lines"}),
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_small_ones.py::TestStdio",
            sink="tests/application/test_sink_kills.py::test_every_value_reaches_programs_functions_and_segments",
        ),
    )

    stdin, stdout = _STDIN, _STDOUT
    """File descriptors, so that a test can pass others."""

    async def run(self, host: Host) -> None:
        host.connected()
        if not host.has_out:
            await host.draining()
            return
        stream = await open_when_there_is_room(host, "stdin")
        if stream is None:
            return
        with _Input(self.stdin) as source:
            stopping = asyncio.create_task(_stop(source, host))
            try:
                await read_into(stream, source.read, host)
            finally:
                stopping.cancel()
        if source.is_at_end:
            await stream.close()
            host.finished()
        else:
            await stream.cut_off(DRAINED)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:  # noqa: ARG002
        try:
            await asyncio.to_thread(_write, self.stdout, encode(outgoing, self.options.format))
        except OSError as error:
            raise Lost(f"cannot write to the worker's standard output: {error}") from error


async def _stop(source: "_Input", host: Host) -> None:
    await host.draining()
    source.stop()


class _Input:
    """Read by a thread, one piece at a time on request: a terminal's descriptor is shared with other processes, so it
    cannot be made non-blocking, and the loop cannot wait for a file's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_at_end = False

    def __enter__(self) -> "_Input":
        self._stopped, self._stop = os.pipe()
        self._reading: asyncio.Future[bytes | None] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        os.close(self._stop)
        if self._reading is not None and not self._reading.done():
            self._reading.add_done_callback(lambda _: os.close(self._stopped))
        else:
            os.close(self._stopped)

    async def read(self) -> bytes | None:
        self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
        data = await asyncio.shield(self._reading)
        if data == b"":
            self.is_at_end = True
        return data or None

    def stop(self) -> None:
        os.write(self._stop, b"!")

    def _read(self) -> bytes | None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        found = {descriptor for descriptor, _ in poll.poll()}
        return None if self._stopped in found else os.read(self._descriptor, _READ_BYTES)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
