"""`script/test --campaign bucket [--part PART] [--kills N] [--seed S]`: a worker on SeaweedFS is killed under load and
started on another, empty machine each time; the store itself is killed; a worker sleeps for a minute while another one
takes over; `penstock run` with everything that it has started moves from machine to machine; the demo loses its worker
and its driver; and the time from a kill to the first acknowledgement elsewhere is measured.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random, randbytes

from rich.console import Console

from penstock.client.segments import SegmentClient
from penstock.testing.seaweedfs import SeaweedFS
from tests.application.moved_run import kill_and_move
from tests.spark.sending import send
from tests.support.bucket_worker import BucketWorker
from tests.support.http import get
from tests.worker.bucket_kills import kill_stores, kill_workers
from tests.worker.bucket_owners import wake_after_take_over

ABOUT = "worker, object store and whole runs killed under load, each start on another empty machine"

ASLEEP_SECONDS = 60.0

_RUNS_A_KILL = 10
"""A run takes half a minute to start: it is killed that many times less than a worker."""

_RECOVERED_MEBIBYTES = (16, 1024)
_RECOVERY_GROWTH_MAX = 2.0
"""Of the times of these two: both contain the lease, and a busy machine varies."""

console = Console(highlight=False)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign bucket", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", choices=_PARTS, help="only this one")
    parser.add_argument("--kills", type=int, default=50, help="of the worker and of the store (default: 50)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the moments of the kills")
    options = parser.parse_args(arguments)
    for part in [options.part] if options.part else _PARTS:
        console.print(f"[bold]{part}[/], seed {options.seed}")
        try:
            _run(part, options.kills, options.seed)
        except Exception:
            console.print_exception()
            again = f"script/test --campaign bucket --part {part} --kills {options.kills} --seed {options.seed}"
            console.print(f"[bold red]{part} fails.[/] Run it again: {again}")
            return 1
    console.print("[bold green]No failure.[/]")
    return 0


def _run(part: str, kills: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bucket-") as folder, SeaweedFS(Path(folder) / "store") as store:
        os.environ.update(store.environment())
        _PARTS[part](Path(folder), store, kills, Random(seed))


def _kill_workers(folder: Path, store: SeaweedFS, kills: int, random: Random) -> None:
    kill_workers(folder, store.url("workers"), kills, random, console.print)


def _kill_stores(folder: Path, store: SeaweedFS, kills: int, random: Random) -> None:
    kill_stores(folder, store, "stores", kills, random, console.print)


def _sleep(folder: Path, store: SeaweedFS, _: int, __: Random) -> None:
    wake_after_take_over(folder, store.url("sleep"), ASLEEP_SECONDS)


def _move(folder: Path, store: SeaweedFS, kills: int, random: Random) -> None:
    kill_and_move(folder, store.url("runs"), max(1, kills // _RUNS_A_KILL), random)


def _demo(_: Path, store: SeaweedFS, __: int, ___: Random) -> None:
    """The worker and the driver are killed, each start is in an empty directory, and the results are compared."""
    subprocess.run([sys.executable, "-m", "demo", "--chaos", "--store", store.url("demo")], check=True)


def _recover(folder: Path, store: SeaweedFS, _: int, __: Random) -> None:
    """How long it takes from a kill to the first acknowledgement elsewhere, whatever is in the journal."""
    took: dict[int, float] = {}
    for mebibytes in _RECOVERED_MEBIBYTES:
        url = store.url(f"recovery-{mebibytes}")
        with BucketWorker(folder / str(mebibytes), url, "--chapter-size", "64MiB") as worker:
            began = time.monotonic()
            _fill(worker, mebibytes)
            console.print(f"{mebibytes} MiB written in {time.monotonic() - began:.0f} s")
            worker.kill()
            began = time.monotonic()
            worker.start()
            listens = time.monotonic() - began
            send(f"127.0.0.1:{worker.connector_port}", "letters", "one", [b"a"])
            seconds = time.monotonic() - began
            recovered = get(worker.http_port, "/status")["store"]["recovery_seconds"]
        console.print(
            f"{mebibytes} MiB in the journal: {seconds:.1f} s from the kill to the first acknowledgement (listening "
            f"after {listens:.1f} s, of which recovery {recovered} s)"
        )
        took[mebibytes] = seconds
    small, large = (took[size] for size in _RECOVERED_MEBIBYTES)
    assert large < _RECOVERY_GROWTH_MAX * small, "it depends on how much is in the journal"


def _fill(worker: BucketWorker, mebibytes: int) -> None:
    with SegmentClient(worker.address) as segments, segments.appender("large", create=True) as appender:
        for _ in range(mebibytes):
            appender.append(randbytes(1 << 20))


_PARTS: dict[str, Callable[[Path, SeaweedFS, int, Random], None]] = {
    "workers": _kill_workers,
    "stores": _kill_stores,
    "sleep": _sleep,
    "runs": _move,
    "demo": _demo,
    "recovery": _recover,
}
