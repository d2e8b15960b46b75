"""SIGKILL for a process and all that it has started, at once, as when a machine is lost."""

import os
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import suppress

GONE_SECONDS_MAX = 30.0


def kill_tree(root: int) -> list[int]:
    """Returns the processes that were killed, once they are gone. Their own sessions and groups make no difference."""
    killed = [root]
    _send(root, signal.SIGSTOP)  # it starts no more
    for pid in killed:
        found = [each for each in _children().get(pid, ()) if each not in killed]
        for each in found:
            _send(each, signal.SIGSTOP)
        killed += found
    for pid in killed:
        _send(pid, signal.SIGKILL)
    return killed


def wait_until_gone(pids: list[int]) -> None:
    """The caller has waited for its own children. Raises SystemExit if one of them is still there."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while alive := set(pids) & _running():
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {sorted(alive)} are there in spite of SIGKILL")
        time.sleep(0.02)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _processes() -> list[tuple[int, int, str]]:
    """Each with its parent and its state."""
    shown = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    return [(int(pid), int(parent), state) for pid, parent, state in map(str.split, shown.splitlines())]


def _children() -> dict[int, list[int]]:
    found = defaultdict(list)
    for pid, parent, _ in _processes():
        found[parent].append(pid)
    return found


def _running() -> set[int]:
    """Without those that have ended, and that nobody has asked for their status."""
    return {pid for pid, _, state in _processes() if not state.startswith("Z")}
