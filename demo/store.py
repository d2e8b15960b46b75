"""A worker is killed again and again while a program appends to it; then every event is counted.

Nothing here is pretended: the worker is a process of its own, it dies of SIGKILL, and the verdict is computed from
what the segment holds at the end.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.client.segments import Appender, SegmentClient

console = Console(highlight=False)
SEGMENT = "demo/numbers"
START_SECONDS_MAX = 60


@dataclass
class DemoWorker:
    """The worker process: started, killed, and started again on the same data and ports."""

    data: Path
    ports: dict[str, int] = field(default_factory=lambda: {"connector": 0, "segment": 0, "http": 0})
    kills: int = 0

    def start(self) -> None:
        (self.data / "ports.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock", "worker", "--data", str(self.data)]
        command += [f"--{name}-port={port}" for name, port in self.ports.items()]
        command += ["--chapter-size=8MiB", "--reserve=16MiB"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.ports = self._wait_for_ports()

    def _wait_for_ports(self) -> dict[str, int]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                ports: dict[str, int] = json.loads((self.data / "ports.json").read_text())
            except FileNotFoundError:
                time.sleep(0.02)
            else:
                return ports
        raise SystemExit("the worker did not start")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        worker = DemoWorker(Path(directory))
        worker.start()
        try:
            sent, seconds = append_under_fire(worker, options.events, options.kills)
            verdict = check(worker, sent)
        finally:
            worker.stop()
        verified = verify(worker.data)
    report(worker, sent, seconds, verdict, verified)


def append_under_fire(worker: DemoWorker, events: int, kills: int) -> tuple[int, float]:
    """Append numbered events while another thread kills and restarts the worker. Returns how many, and how long."""
    console.print(f"A worker listens on port {worker.ports['segment']}. Appending {events:,} events to {SEGMENT!r} …")
    began = time.monotonic()
    with progress_bar() as progress, SegmentClient(f"127.0.0.1:{worker.ports['segment']}") as client:
        task = progress.add_task("acknowledged", total=events)
        client.create(SEGMENT)
        with client.appender(SEGMENT, writer_id=uuid.uuid4().bytes, block_bytes=16 * 1024) as appender:
            done = threading.Event()
            killer = threading.Thread(target=kill_now_and_then, args=(worker, kills, progress, done))
            killer.start()
            try:
                number = append_numbers(appender, events, killer, lambda n: progress.update(task, completed=n))
            finally:
                done.set()
                killer.join()
    return number, time.monotonic() - began


def append_numbers(appender: Appender, least: int, killer: threading.Thread, show: Callable[[int], None]) -> int:
    """Append at least so many events, and go on as long as the worker is being killed. Returns how many."""
    number = 0
    while number < least or killer.is_alive():
        for _ in range(100):
            number += 1
            appender.append(b"event %012d" % number)
        show(appender.acknowledged or 0)
        time.sleep(0.002)
    appender.flush()
    show(number)
    return number


def kill_now_and_then(worker: DemoWorker, kills: int, progress: Progress, done: threading.Event) -> None:
    for number in range(1, kills + 1):
        if done.wait(random.uniform(0.4, 1.2)):
            return
        worker.kill()
        began = time.monotonic()
        worker.start()
        progress.console.print(
            f"  kill {number}: SIGKILL in the middle of it all, serving again after {time.monotonic() - began:.2f} s"
        )


def check(worker: DemoWorker, sent: int) -> dict[str, int]:
    """Read everything back and count."""
    console.print("Reading everything back …")
    found = []
    with SegmentClient(f"127.0.0.1:{worker.ports['segment']}") as client:
        found = [int(bytes(event.data).split()[1]) for event in client.events(SEGMENT)]
    unique = set(found)
    return {
        "stored": len(found),
        "lost": len(set(range(1, sent + 1)) - unique),
        "stored twice": len(found) - len(unique),
        "out of order": sum(a >= b for a, b in pairwise(found)),
    }


def verify(data: Path) -> bool:
    command = [sys.executable, "-m", "penstock", "segment", "verify", "--data", str(data)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def report(worker: DemoWorker, sent: int, seconds: float, verdict: dict[str, int], verified: bool) -> None:
    table = Table(title="What happened", title_justify="left", show_header=False)
    rows = {"events sent and acknowledged": sent, "worker killed with SIGKILL": worker.kills, **verdict}
    for name, value in rows.items():
        table.add_row(name, f"{value:,}")
    table.add_row("every checksum on disk holds", "yes" if verified else "NO")
    table.add_row("time", f"{seconds:.1f} s")
    console.print(table)
    good = verified and sent == verdict["stored"] and not any(list(verdict.values())[1:])
    if not good:
        console.print("[bold red]Verdict: events were lost, doubled or reordered.[/]")
        raise SystemExit(1)
    console.print("[bold green]Verdict: every acknowledged event is stored once, and in order.[/]")


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(SpinnerColumn(), *columns, console=console)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("stopped")
        raise SystemExit(130) from None
