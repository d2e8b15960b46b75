"""What platforms other than Linux lack: the replacements, and what does not work without it.

The tests run on Linux. Each function checks at each call what the platform has, so that a test can hide it.
"""

import ctypes
import fcntl
import os
import socket
import termios
from collections.abc import Callable, Iterator
from errno import EINVAL, ENOTSUP, ENOTTY
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The id of the running kernel."""

_ZEROS = bytes(1 << 20)
"""Bytes written at a time where no single call can reserve space."""

_NOT_THIS_FILE_SYSTEM = (EINVAL, ENOTSUP, ENOTTY)
"""F_FULLFSYNC on a file system that does not have it, such as one on the network."""


def sync_file(fd: int) -> None:
    """Return when the file is on the disk, or the directory. Raises OSError.

    On macOS, fsync leaves the bytes in the disk's own cache, which a power cut empties; F_FULLFSYNC does not.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
        return
    try:
        fcntl.fcntl(fd, full)
    except OSError as error:
        if error.errno not in _NOT_THIS_FILE_SYSTEM:
            raise
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Return when the file's bytes and its size are on the disk. Raises OSError.

    On Linux, fdatasync also writes a new size; it skips only metadata that readers do not need.
    """
    getattr(os, "fdatasync", sync_file)(fd)


def libc(function: str) -> Any:
    """A function of the C library; None if it has none of this name."""
    return getattr(ctypes.CDLL(None, use_errno=True), function, None)


def reserve(fd: int, start: int, end: int) -> None:
    """Reserve space, filled with zeros, from the file's end, `start`, to `end`. Raises OSError (ENOSPC); the file may
    have grown by then.
    """
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        allocate(fd, 0, end)
        return
    while start < end:
        start += os.pwrite(fd, _ZEROS[: end - start], start)


def cores() -> int:
    """The number of processors that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def keep_alive(connected: socket.socket, idle_seconds: int, every_seconds: int, probes: int) -> None:
    """Probe the peer while the connection is idle. Raises OSError."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (idle_option(), idle_seconds),
        (getattr(socket, "TCP_KEEPINTVL", None), every_seconds),
        (getattr(socket, "TCP_KEEPCNT", None), probes),
    ):
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def idle_option() -> int | None:
    """TCP_KEEPIDLE, as Linux calls it."""
    return getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)


def limit_unacknowledged(connected: socket.socket, milliseconds: int) -> None:
    """End the connection if sent data is not acknowledged for so long. Raises OSError."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        connected.setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def limitations() -> Iterator[str]:
    """What does not work on this platform, or works differently; nothing on Linux."""
    yield from _of_files()
    if libc("prctl") is None:
        yield "prctl is missing: a worker keeps running if the `penstock run` that started it is killed"
    yield from _of_sockets()


def _of_files() -> Iterator[str]:
    if not hasattr(os, "fdatasync"):
        if hasattr(fcntl, "F_FULLFSYNC"):
            yield "fdatasync is missing: each sync waits until the disk has emptied its whole cache, which is slower"
        else:
            yield "fdatasync is missing: fsync is used, and a disk that caches writes may lose them in a power cut"
    if not hasattr(os, "posix_fallocate"):
        yield "posix_fallocate is missing: a file system that copies on write may not keep the reserve for a full disk"
    if libc("syncfs") is None:
        yield "syncfs is missing: a commit of Spark's checkpoint syncs every disk, and does not notice if one fails"
    if not BOOT_ID.exists():
        yield "there is no /proc: Spark reads over the network instead of from the journal's files"


def _of_sockets() -> Iterator[str]:
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield "TCP_USER_TIMEOUT is missing: a peer that vanishes while data is sent to it is noticed minutes later"
    if not (hasattr(socket, "TCP_INFO") and hasattr(termios, "TIOCOUTQ")):
        yield "TCP_INFO is missing: the tcp and unix connectors cannot know what a peer has received, and do not send"
    if not hasattr(socket, "SO_PEERCRED"):
        yield "SO_PEERCRED is missing: unix-server does not know which program has connected"
