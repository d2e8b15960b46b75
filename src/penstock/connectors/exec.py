"""`exec`: a program's standard output is a source, its standard input a sink."""

import asyncio
import errno
import fcntl
import logging
import os
import select
import signal
import struct
import termios
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing, ShownBy, Stream
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.row_formats import encode
from penstock.connectors.streams import DRAINED, first_of, open_when_there_is_room, read_into, readable, writable
from penstock.connectors.values import SomeSeconds
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_READ_BYTES = 256 << 10
"""Bytes of standard output that are read at a time."""

_PIPE_BYTES = 1 << 20
"""What a pipe can hold: the most that the kernel allows without privileges."""

_POLL_SECONDS = (0.0005, 0.05)
"""Between two looks whether the program has read its standard input: there is no notification."""

_LOGGED_BYTES_MAX = 1000
"""Of one line of standard error: the rest is left out."""

_LOGGED_LINES_MAX = 100
_LOGGED_SECONDS = 10.0
"""Lines of standard error that are logged in so many seconds: a program in a loop must not fill the log."""

_LAST_LINES = 3
"""Lines of standard error in the reason why a program has failed."""

_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""The worker's variables that programs get: others may be secrets of other connectors."""


class ExecOptions(Options):
    """The program starts with the connector, without a shell. What it writes to its standard output is a stream, from
    its start to its end; without interceptors, an event is whatever one read returns. What it writes to its standard
    error is logged line by line, at most 100 lines in ten seconds.

    Values are written to its standard input, and count as delivered when the program has read them. What it had not
    read when it ended is written to the next one. What it has read but not processed when it is killed is lost, unless
    the program itself prevents that.

    When the connector is removed or stopped, the program's standard input is closed. After `stop_after`, the program
    and its process group get SIGTERM, and after the same time again SIGKILL. If the worker itself is killed, the
    program finds its pipes closed.

    The program has all the rights of the worker. A worker refuses this type unless it was started with `--allow-exec`;
    the worker that `penstock run` starts is its user's own, and allows it.
    """

    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """The program and its arguments, such as `[tail, -F, app.log]`. For a shell's features: `[sh, -c, "a | b"]`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables, in addition to the worker's PATH, HOME, LANG, LC_ALL, TZ and TMPDIR. Take secrets from
    the worker's environment or from files: `${NAME}`, `${file:PATH}`."""
    directory: Path | None = None
    """Where it starts. By default, where the worker was started."""
    restart: Literal["always", "on-failure"] = "on-failure"
    """`on-failure`: it is started again, after the pauses of `reconnect`, unless it has exited with one of the codes in
    `success`: then the source has ended, and all its windows close. `always`: it is started again in any case. A
    program that is a sink is always started again."""
    success: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1)] = Field(
        default_factory=lambda: [0]
    )
    """The exit codes that are not a failure. After any other code, or a signal, an incomplete record at the end of the
    output is a dead letter."""
    format: Literal["raw", "lines", "json"] = "lines"
    """How values are written to its standard input. `raw`: as the interceptors return them. `lines`: a newline after
    each value. `json`: one object per line, with `id`, `event_time_us`, `key` and `value`."""
    stop_after: SomeSeconds = 2.0
    """How long it may take to end after its standard input is closed, and again after SIGTERM."""


class Exec(Connector[ExecOptions]):
    about = About(
        name="exec",
        text="Runs a program: its standard output is a source, its standard input a sink.",
        options=ExecOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            on_stream_started="Opens every stream while the program runs.",
        ),
        example={"command": ["journalctl", "--follow", "--output=json"], "restart": "always"},
        shown_by=ShownBy(
            source="tests/connectors/test_exec.py::test_a_program_that_fails_is_started_again_and_half_a_line_is_a_dead_letter",
            sink="tests/connectors/test_exec.py::test_values_that_a_killed_program_had_not_read_are_written_to_the_next_one",
        ),
    )

    def __init__(self, options: ExecOptions) -> None:
        super().__init__(options)
        self._program: Program | None = None

    @classmethod
    def check_permitted(cls, options: ExecOptions, permissions: Permissions) -> None:
        permissions.check_programs()
        super().check_permitted(options, permissions)

    async def run(self, host: Host) -> None:
        program = self._program = await self._started()
        host.connected()
        complaints = asyncio.create_task(self._log_errors(program, host))
        try:
            stream = await self._read(program, host)
            if host.is_draining:
                await asyncio.Event().wait()  # for what is still to be written, until this is cancelled
            await self._ended(program, complaints, stream, host)
        finally:
            self._program = None
            await _finished(program.stop(self.options.stop_after if host.is_draining else 0))
            complaints.cancel()
            await asyncio.gather(complaints, return_exceptions=True)
            program.close()

    async def _started(self) -> "Program":
        options = self.options
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | options.environment
        try:
            return await Program.start(options.command, environment, options.directory)
        except OSError as error:
            raise Lost(f"{options.command[0]} cannot be started: {error.strerror or error}") from error

    async def _read(self, program: "Program", host: Host) -> Stream | None:
        """Its output to the end, or until nothing more should be read."""
        if not host.has_out:
            await first_of(program.exited(), _discard(program, host), host.draining())
            await first_of(program.exited(), host.draining())
            return None
        stream = await open_when_there_is_room(host, f"{Path(self.options.command[0]).name} {program.pid}")
        if stream is None:
            return None
        stopping = asyncio.create_task(_stop_reading(program, host))
        try:
            await first_of(read_into(stream, program.read, host), program.lost.wait())
        except BadBytes:
            host.count("bad_streams")
            await stream.close()
            raise
        finally:
            stopping.cancel()
        if host.is_draining:
            await stream.cut_off(DRAINED)
        return stream

    async def _ended(
        self, program: "Program", complaints: "asyncio.Task[str]", stream: Stream | None, host: Host
    ) -> None:
        """It has closed its output. Returns if it has succeeded for good. Raises Lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.stop_after):
                await program.exited()
        await program.stop(0)
        code = await program.exited()
        is_success = code in self.options.success
        reason = f"{self.options.command[0]} {_how(code)}"
        if stream is not None and is_success:
            await stream.close()
        elif stream is not None:
            await stream.cut_off(reason)
        host.count("exits" if is_success else "failed_exits")
        if is_success and self.options.restart == "on-failure" and host.has_out and not host.has_in:
            host.finished()
            return
        last = await complaints
        raise Lost(f"{reason}: {last}" if last and not is_success else reason)

    async def _log_errors(self, program: "Program", host: Host) -> str:
        """Its standard error, line by line, to its end. Returns the last lines."""
        lines = _Complaints()
        while (data := await program.read_error()) is not None:
            for line in lines.fed(data, asyncio.get_running_loop().time()):
                log.warning("%s: %s", host.name, self.mask.text(line))
            if lines.left_out:
                host.count("stderr_lines_left_out", lines.left_out)
                lines.left_out = 0
        return "; ".join(lines.last)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:  # noqa: ARG002
        program = self._program
        if program is None:
            raise Lost(f"{self.options.command[0]} is not running")
        try:
            written = await first_of(program.write(encode(outgoing, self.options.format)), program.exited())
        except OSError as error:
            program.lost.set()
            raise Lost(f"{self.options.command[0]} has closed its standard input: {error.strerror}") from error
        if written == 1:
            program.lost.set()
            raise Lost(f"{self.options.command[0]} has ended")


async def _stop_reading(program: "Program", host: Host) -> None:
    await host.draining()
    program.stop_reading()


async def _discard(program: "Program", host: Host) -> None:
    while (data := await program.read()) is not None:
        host.count("discarded_bytes", len(data))


async def _finished(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait for it even if this is cancelled: a program that is left behind would never be ended."""
    task, cancelled = asyncio.create_task(stopping), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _how(code: int) -> str:
    if code >= 0:
        return f"has ended with code {code}"
    return f"was ended by {signal.Signals(-code).name}"


class _Complaints:
    """Cuts standard error into lines, and bounds what is logged of them."""

    def __init__(self) -> None:
        self._rest = b""
        self._since = float("-inf")
        self._logged = 0
        self.left_out = 0
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def fed(self, data: bytes, now: float) -> list[str]:
        """The lines to log."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LOGGED_BYTES_MAX]
        if now - self._since >= _LOGGED_SECONDS:
            self._since, self._logged = now, 0
        texts = [line[:_LOGGED_BYTES_MAX].decode(errors="replace") for line in lines if line.strip()]
        self.last.extend(texts)
        allowed = texts[: _LOGGED_LINES_MAX - self._logged]
        self._logged += len(allowed)
        self.left_out += len(texts) - len(allowed)
        return allowed


# The program itself: a process group with three pipes, of which we read and write one end, only on request.


class Program:
    """Everything is called in the loop. `close` when it has ended."""

    def __init__(self, process: asyncio.subprocess.Process, stdin: int, stdout: int, stderr: int) -> None:
        self._process = process
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._exited = asyncio.ensure_future(process.wait())
        self._stopped = asyncio.Event()
        self.lost = asyncio.Event()
        """Values cannot be written to it. While its stream may not send, its output is not read, and this is the only
        sign that it has ended: whether the stream may ever send again can depend on the next program."""

    @classmethod
    async def start(cls, command: list[str], environment: dict[str, str], directory: Path | None) -> "Program":
        """Raises OSError."""
        (theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err) = os.pipe(), os.pipe(), os.pipe()
        theirs, ours = (theirs_in, theirs_out, theirs_err), (stdin, stdout, stderr)
        try:
            for end in ours:
                os.set_blocking(end, False)
                with suppress(OSError, AttributeError):  # the user may have used up what pipes may take
                    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_err,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        except BaseException:
            for end in ours:
                os.close(end)
            raise
        finally:
            for end in theirs:
                os.close(end)
        return cls(process, *ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exited(self) -> int:
        """Its exit code, or less than 0 for a signal."""
        return await asyncio.shield(self._exited)

    async def read(self) -> bytes | None:
        """Its output; None at its end, or when nothing more should be read and the pipe is empty."""
        return await self._read(self._stdout)

    async def read_error(self) -> bytes | None:
        return await self._read(self._stderr)

    def stop_reading(self) -> None:
        self._stopped.set()

    async def _read(self, pipe: int) -> bytes | None:
        """When it has ended, its children may still have the pipe: what it has written is there by then."""
        while True:
            is_last = self._exited.done() or (self._stopped.is_set() and pipe == self._stdout)
            try:
                return os.read(pipe, _READ_BYTES) or None
            except BlockingIOError:
                if is_last:
                    return None
            stopped = self._stopped.wait() if pipe == self._stdout else self.exited()
            await first_of(readable(pipe), self.exited(), stopped)

    async def write(self, data: bytes) -> None:
        """Returns when the program has read it. Raises OSError."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                await writable(self._stdin)
        pause, longest = _POLL_SECONDS
        while _unread(self._stdin):
            if not _has_reader(self._stdin):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def stop(self, seconds: float) -> None:
        """End the program and its process group. It has this long after the end of its input, and after SIGTERM."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        for number in (None, signal.SIGTERM):
            if number is not None and not self._exited.done():
                self._signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.exited()
        self._signal(signal.SIGKILL)
        await self.exited()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        for end in (self._stdin, self._stdout, self._stderr):
            if end >= 0:
                os.close(end)
        self._stdin = self._stdout = self._stderr = -1


def _unread(pipe: int) -> int:
    (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(waiting)


def _has_reader(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLERR)
    return not any(found & select.POLLERR for _, found in poll.poll(0))
