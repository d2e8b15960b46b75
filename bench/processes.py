"""The processes under test: servers that never outlive the benchmark, their memory and their page cache."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.core.errors import Unavailable
from penstock.spark.run import fork_server

START_SECONDS_MAX = 120.0
"""A server that does not serve by then, on a loaded machine, will not."""

STOP_SECONDS_MAX = 5.0
"""Then it is killed: nobody needs its data any more."""

LOG_BYTES_SHOWN = 2_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Ports = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a server's processor time went to: its own code, or the kernel on its behalf."""

    user: float = 0.0
    system: float = 0.0

    def since(self, before: "Cpu", seconds: float) -> "Cpu":
        """Cores that were busy, on average over the `seconds` from `before` to now."""
        return Cpu((self.user - before.user) / seconds, (self.system - before.system) / seconds)


@dataclass(slots=True)
class Server:
    """A running server. As a context manager it ends the process on the way out."""

    process: subprocess.Popen[bytes]
    directory: Path
    ports: Ports

    def pids(self) -> list[int]:
        """The server and the processes that it has started, such as those of a host's shards."""
        return [self.process.pid, *_descendants(self.process.pid, _children())]

    def peak_rss_bytes(self) -> int:
        return sum(map(peak_rss_bytes, self.pids()))

    def cpu(self) -> Cpu:
        """Processor seconds used so far."""
        used = [_ticks(pid) for pid in self.pids()]
        return Cpu(sum(one[0] for one in used) / TICKS_PER_S, sum(one[1] for one in used) / TICKS_PER_S)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_server(
    command: Sequence[str],
    directory: Path,
    find_ports: Callable[[], Ports | None],
    seconds_max: float = START_SECONDS_MAX,
) -> Server:
    """Start `command`, and return when `find_ports` knows where it serves. The process gets a
    session of its own, so that Ctrl-C reaches the benchmark alone, which then stops the server.
    """
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, directory, {})
    try:
        server.ports = _wait_until_serving(process, find_ports, log, seconds_max)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_serving(
    process: subprocess.Popen[bytes], find_ports: Callable[[], Ports | None], log: Path, seconds_max: float
) -> Ports:
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline and process.poll() is None:
        ports = find_ports()
        if ports is not None:
            return ports
        time.sleep(0.02)
    tail = log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")
    command = " ".join(str(part) for part in process.args)  # type: ignore[union-attr]
    raise Unavailable(f"{command} did not serve:\n{tail}", "Run that command by hand.")


def peak_rss_bytes(pid: int) -> int:
    """The most memory that the process has ever taken at once; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def listening(port: int) -> Callable[[], Ports | None]:
    """For servers that are given their port: they serve once they accept."""

    def find() -> Ports | None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return None
        return {"main": port}

    return find


def ports_file(path: Path) -> Callable[[], Ports | None]:
    """For servers that choose their ports, and write them to a file as JSON."""

    def find() -> Ports | None:
        try:
            ports: dict[str, int] = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return ports

    return find


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), START_SECONDS_MAX)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def filesystem(directory: Path) -> str:
    """The type of the filesystem that holds `directory`."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0]
    return "unknown"


# The page cache: the same memory for every contender.
#
# A virtual machine gives memory that it does not use back to its host. A program that writes a file into fresh memory
# then waits for the host page by page, which here takes longer than the disk does, and the one that runs after it
# inherits what it has warmed up: measured, whoever came second was twice as fast. On a machine that has run for a
# while the page cache is full, and pages are used again as soon as they are clean. That state is made here, for all
# alike: while a contender is under load, the clean pages of its files are dropped again and again. It loses nothing
# by that; nobody reads during the load.

DROP_SECONDS = 0.05
"""Some ten MB at the speed of the disk: little memory, used over and over. Costs 7 % of one core."""


@contextmanager
def recycled(directory: Path) -> Iterator[None]:
    """Keep what is written below `directory` from filling fresh memory."""
    done = threading.Event()
    thread = threading.Thread(target=_drop_until, args=(directory, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _drop_until(directory: Path, done: threading.Event) -> None:
    while not done.wait(DROP_SECONDS):
        drop_clean_pages(directory)


def drop_clean_pages(directory: Path) -> None:
    """Dirty ones stay. Files may come and go meanwhile."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                _drop(os.path.join(parent, name))  # noqa: PTH118 (no objects per file and turn)


def _drop(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# Spark's processes: its JVM, and the Python processes that it has started.

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Peak:
    """In bytes. `python` is that of the largest Python process, `pythons` their number."""

    jvm: int = 0
    python: int = 0
    pythons: int = 0

    def merged(self, other: "Peak") -> "Peak":
        return Peak(max(self.jvm, other.jvm), max(self.python, other.python), max(self.pythons, other.pythons))


def peak_of_spark() -> Peak:
    """Of the JVM that this process has started, and of its Python processes that live now: what each has ever taken.
    These are descendants of the JVM, or of the fork server.
    """
    children = _children()
    ours = children.get(os.getpid(), [])
    jvm = max(map(peak_rss_bytes, filter(_is_java, ours)), default=0)
    roots = [pid for pid in ours if _is_java(pid) or _is_fork_server(pid)]
    sizes = [size for root in roots for pid in _descendants(root, children) if (size := peak_rss_bytes(pid))]
    return Peak(jvm, max(sizes, default=0), len(sizes))


def cpu_seconds_of_spark() -> dict[str, float]:
    """Used so far by this process, by the JVM that it has started, and by all Python processes of the JVM, also by
    those that have ended.
    """
    children = _children()
    ours = children.get(os.getpid(), [])
    jvm = sum(map(own_cpu_seconds, filter(_is_java, ours)))
    trees = sum(cpu_seconds_of_tree(pid) for pid in ours if _is_java(pid) or _is_fork_server(pid))
    return {"driver": own_cpu_seconds(os.getpid()), "jvm": jvm, "python": trees - jvm}


def own_cpu_seconds(pid: int) -> float:
    """Used so far by this process alone. None for one that has ended."""
    return sum(_ticks(pid)[:2]) / TICKS_PER_S


def cpu_seconds_of_tree(pid: int) -> float:
    """Used so far by this process and its descendants, also by those that have ended."""
    children = _children()
    return sum(map(_cpu_seconds, (pid, *_descendants(pid, children))))


def _cpu_seconds(pid: int) -> float:
    """Of the process itself, and of its children that have ended. None for one that has ended meanwhile."""
    return sum(_ticks(pid)) / TICKS_PER_S


def _ticks(pid: int) -> list[int]:
    """User and system time: those of the process, then those of its children that have ended."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [0, 0, 0, 0]
    return [*map(int, fields[11:15])]


def _is_java(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "comm").read_text().strip() == "java"
    except OSError:
        return False


def _is_fork_server(pid: int) -> bool:
    try:
        return fork_server.__name__.encode() in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    for child in children.get(pid, []):
        yield child
        yield from _descendants(child, children)


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for directory in PROC.iterdir():
        if directory.name.isdigit() and (parent := _parent(directory)):
            found.setdefault(parent, []).append(int(directory.name))
    return found


def _parent(directory: Path) -> int:
    try:
        return int((directory / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
