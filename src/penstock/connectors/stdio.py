"""The worker's standard input as a stream, and its standard output as a sink."""

import asyncio
import os
import select
from collections.abc import Sequence

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing
from penstock.connectors.streams import DRAINED, open_when_there_is_room, read_into
from penstock.core.types import Guarantee

_STDIN, _STDOUT = 0, 1

_READ_BYTES = 256 << 10
"""Taken from standard input at a time."""


class StdioOptions(Options):
    """Of the process that hosts the connector: of `penstock worker`, or of `penstock run` where it starts the worker
    itself, which then inherits its standard input and output. With `--worker` it is that worker's terminal, not yours.
    One connector of an application reads it. Its end is the end of the source: all windows may close. Values leave as
    the interceptors have made them: name `split` and `join` for lines.
    """


class Stdio(Connector[StdioOptions]):
    """Of the process that hosts the connector: `penstock worker`, or the worker that `penstock run` starts. Standard
    input is left alone unless `out` is linked; at its end the source has ended for good. Values leave as interceptors
    made them: `join` for lines.
    """

    about = About(
        name="stdio",
        text="Reads the worker's standard input, and writes to its standard output.",
        options=StdioOptions,
        capabilities=Capabilities(source=Guarantee.AT_MOST_ONCE, sink=Guarantee.AT_LEAST_ONCE, own_event_times=False),
    )

    stdin, stdout = _STDIN, _STDOUT
    """Descriptors, so that a test can give others."""

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
            await asyncio.to_thread(_write, self.stdout, outgoing.values)
        except OSError as error:
            raise Lost(f"standard output takes nothing: {error}") from error


async def _stop(source: "_Input", host: Host) -> None:
    await host.draining()
    source.stop()


class _Input:
    """Read by a thread, one piece when it is asked for: a terminal's descriptor is shared with others, so it cannot be
    made non-blocking, and a file's cannot be waited for in the loop.
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


def _write(descriptor: int, values: Sequence[bytes]) -> None:
    rest = memoryview(b"".join(values))
    while rest:
        rest = rest[os.write(descriptor, rest) :]
