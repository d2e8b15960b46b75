"""The shard processes of a host: started as they are assigned, started again when they die, asked to leave when their
shard is assigned to another host, and stopped with the host.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.core.retry import Pauses, RetryPolicy
from penstock.worker.directory import CONNECTOR, CONTROLLER, HTTP, SEGMENT
from penstock.worker.host_link import VARIABLE, LinkOptions, ProcessLink, ShardReport

log = logging.getLogger(__name__)

_STARTS = RetryPolicy(first_seconds=0.2, max_seconds=30.0)
_STEADY_SECONDS = 60.0
"""A process that has run for so long has not died because it was just started."""
STOP_SECONDS_MAX = 60.0
"""A stop makes durable and acknowledges what was received. Killing a process after that loses nothing acknowledged."""
SILENT_SECONDS_MAX = 15.0
"""A process that has served and reports nothing for so long hangs: its lease has expired. Longer than a lease, so that
a busy machine does not kill what would recover.
"""
UNREADY_SILENT_SECONDS_MAX = 120.0
"""The same for a process that does not serve yet: while it recovers its journal, it reports nothing. Twice as long
after each such kill in a row, so that a long recovery ends one day.
"""
_DOUBLINGS_MAX = 5
_ASLEEP_SECONDS = 5.0
"""Between two looks: the host itself has slept, and has heard nothing."""
_LINE_BYTES_MAX = 1 << 16
_STDERR = 2


# Decisions.


class Action(Enum):
    START = "start"
    LEAVE = "leave"
    """Once a process of the other host waits for the shard."""
    STOP = "stop"


def plan(assigned: Collection[int], running: Mapping[int, ShardReport]) -> dict[int, Action]:
    """What a host has to do about its shard processes. A process that does not own its shard is not needed where the
    shard is not assigned, unless sources are still to follow the shard.
    """
    actions = {shard: Action.START for shard in assigned if shard not in running}
    for shard, report in running.items():
        if shard in assigned:
            continue
        if report.state == "serving" and not report.is_leaving:
            actions[shard] = Action.LEAVE
        elif report.state != "serving" and not report.is_leaving:
            actions[shard] = Action.STOP
    return actions


# Processes.


class StartOptions(NamedTuple):
    """How a shard process is started."""

    arguments: Sequence[str]
    """Of the host's own command; the last option of a name counts."""
    data: Path
    host: str
    cache: Path | None = None
    log_file: Path | None = None
    segment: str = ""
    """As in LinkOptions."""
    has_controller: bool = False
    """Whether the host has a controller port."""

    def command(self, shard: int) -> list[str]:
        own = [f"--shard={shard}", f"--data={self.data / 'shards' / str(shard)}"]
        own += [f"--{port}-port=0" for port in (CONNECTOR, SEGMENT, HTTP)]
        if self.has_controller:
            own.append(f"--{CONTROLLER}-port=0")
        if self.cache is not None:
            own.append(f"--cache={self.cache / str(shard)}")
        if self.log_file is not None:
            own.append(f"--log-file={self.log_file.with_suffix(f'.shard-{shard}{self.log_file.suffix}')}")
        return [sys.executable, "-m", "penstock", "worker", *self.arguments, *own]


class ShardProcess:
    """One run of a process."""

    def __init__(
        self,
        shard: int,
        options: StartOptions,
        on_change: Callable[[], None],
        stop_seconds_max: float = STOP_SECONDS_MAX,
    ) -> None:
        self.shard = shard
        self._stop_seconds_max = stop_seconds_max
        self.is_stopping = False
        self.is_killed = False
        """Because it was silent."""
        self.has_ended = False
        self.pid = 0
        self._options = options
        self._on_change = on_change
        self._link = ProcessLink()
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = 0.0

    @property
    def report(self) -> ShardReport:
        return self._link.report

    @property
    def is_serving(self) -> bool:
        return self.report.state == "serving"

    def silent_seconds(self, since: float, now: float) -> float:
        """`since`: when the host has begun to listen."""
        return now - max(self._link.heard_at, self._started_at, since)

    def kill(self) -> None:
        self.is_killed = True
        log.error("shard %d: process %d does not answer, and is killed", self.shard, self.pid)
        self._signal(signal.SIGKILL)

    async def start(self) -> None:
        """Raises OSError."""
        theirs, data = self._link.theirs, str(self._options.data.absolute())
        link = LinkOptions(theirs.fileno(), self._options.host, data, self._options.segment)
        self._process = await asyncio.create_subprocess_exec(
            *self._options.command(self.shard),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, VARIABLE: msgspec.json.encode(link).decode()},
            start_new_session=True,  # Ctrl-C reaches only the host, which stops its processes
            limit=_LINE_BYTES_MAX,
        )
        self.pid, self._started_at = self._process.pid, asyncio.get_running_loop().time()
        log.info("shard %d: process %d is started", self.shard, self.pid)
        self._tasks = [
            asyncio.create_task(self._link.run(self._on_change)),
            asyncio.create_task(self._pass_log_on()),
            asyncio.create_task(self._wait()),
        ]

    async def _pass_log_on(self) -> None:
        """Lines of text or of JSON, with the shard's number."""
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # longer than any line of a log
                continue
            if not line:
                return
            is_json = line.startswith(b'{"')
            shown = b'{"shard": %d, %s' % (self.shard, line[1:]) if is_json else b"[%d] %s" % (self.shard, line)
            with suppress(OSError):
                os.write(_STDERR, shown)

    async def _wait(self) -> None:
        code = await self._process.wait()
        self.has_ended = True
        if not self.is_stopping:
            log.error("shard %d: process %d has ended: %s", self.shard, self.pid, _ending(code))
        self._on_change()

    def leave(self, to: str) -> None:
        self._link.leave(to)

    async def stop(self) -> None:
        """Returns when it has ended."""
        self.is_stopping = True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_seconds_max):
                await asyncio.gather(*self._tasks[1:])
        except TimeoutError:
            log.error("shard %d: process %d does not stop, and is killed", self.shard, self.pid)
            self._signal(signal.SIGKILL)
            await self._process.wait()
            self.has_ended = True  # the task that waits for it was cancelled by the time-out
            self._on_change()
        self.close()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._link.close()

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _ending(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"exit status {code}"


class ShardProcesses:
    """All processes of a host, by shard."""

    def __init__(
        self, options: StartOptions, on_change: Callable[[], None], stop_seconds_max: float = STOP_SECONDS_MAX
    ) -> None:
        self._options = options
        self._on_change = on_change
        self._stop_seconds_max = stop_seconds_max
        self._running: dict[int, ShardProcess] = {}
        self._pauses: dict[int, Pauses] = {}
        self._not_before: dict[int, float] = {}
        self._started: dict[int, float] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._hung: dict[int, int] = {}
        """How often in a row a shard's process was killed before it has served."""
        self._listens_since = self._looked = float("-inf")

    def running(self) -> dict[int, ShardProcess]:
        return dict(self._running)

    def reports(self) -> dict[int, ShardReport]:
        return {shard: one.report for shard, one in self._running.items() if not one.is_stopping}

    def failing(self) -> dict[int, int]:
        """Shards whose process has died, with how often in a row."""
        return {shard: pauses.failures for shard, pauses in self._pauses.items() if shard not in self._running}

    def take_ended(self) -> list[ShardProcess]:
        """Those that have ended since the last call. They are started again, after a pause that grows."""
        loop = asyncio.get_running_loop()
        ended = [one for one in self._running.values() if one.has_ended]
        for one in ended:
            del self._running[one.shard]
            one.close()
            if one.is_stopping:
                continue
            pauses = self._pauses.setdefault(one.shard, Pauses(_STARTS))
            if loop.time() - self._started[one.shard] > _STEADY_SECONDS:
                pauses.reset()
            self._not_before[one.shard] = loop.time() + pauses.next()
        return ended

    def kill_silent(self, now: float | None = None) -> None:
        """Those that hang; to be called every few seconds. They are started again like others that have died."""
        now = asyncio.get_running_loop().time() if now is None else now
        if now - self._looked > _ASLEEP_SECONDS:
            self._listens_since = now
        self._looked = now
        for one in self._running.values():
            if one.is_serving:
                self._hung.pop(one.shard, None)
            if one.has_ended or one.is_killed:
                continue
            if one.silent_seconds(self._listens_since, now) > self._silent_seconds_max(one):
                if not one.is_serving:
                    self._hung[one.shard] = self._hung.get(one.shard, 0) + 1
                one.kill()

    def _silent_seconds_max(self, one: ShardProcess) -> float:
        if one.is_serving:
            return SILENT_SECONDS_MAX
        doublings = min(self._hung.get(one.shard, 0), _DOUBLINGS_MAX)
        factor: int = 1 << doublings
        return UNREADY_SILENT_SECONDS_MAX * factor

    async def start(self, shard: int) -> None:
        """Unless it is too early after it has died. Raises OSError."""
        loop = asyncio.get_running_loop()
        if shard in self._running or loop.time() < self._not_before.get(shard, 0.0):
            return
        process = self._running[shard] = ShardProcess(shard, self._options, self._on_change, self._stop_seconds_max)
        self._started[shard] = loop.time()
        try:
            await process.start()
        except BaseException:
            del self._running[shard]
            process.close()
            raise

    def leave(self, shard: int, to: str) -> None:
        self._running[shard].leave(to)

    def stop(self, shard: int) -> None:
        """In the background; `take_ended` has it later."""
        one = self._running[shard]
        if not one.is_stopping:
            one.is_stopping = True
            task = asyncio.create_task(one.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def stop_all(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._running.values() if not one.has_ended))
        if self._stopping:
            await asyncio.gather(*self._stopping)
