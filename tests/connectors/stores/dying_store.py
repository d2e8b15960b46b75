"""Processes that kill themselves with SIGKILL at a chosen step of what a sink does to its store.

python -m tests.connectors.stores.dying_store     a request per line, as JSON; answers with the child's exit status

A step is a call that writes, syncs, creates or executes something; death comes before it, or in the middle of a write.
A request to a bucket has two: before it, and after it.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from pyarrow.parquet import ParquetWriter
from pyiceberg.catalog.sql import SqlCatalog

from penstock.bucket.file_bucket import FileBucket
from penstock.bucket.stores import ObjectStoreBucket
from penstock.client.sink import DataFile
from penstock.connectors.lake.places import BucketPlace
from penstock.store.files import RealFile, RealFiles
from tests.connectors.stores.kinds import KINDS, Store
from tests.connectors.stores.rounds import example

KILLED = -signal.SIGKILL

STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "file": (
        (RealFile, "write"),
        (RealFile, "sync"),
        (RealFile, "truncate"),
        (RealFile, "allocate"),
        (RealFiles, "create"),
        (RealFiles, "rename"),
        (RealFiles, "sync"),
        (DataFile, "__init__"),
        (os, "fsync"),
    ),
    "sqlite": (),
    "postgres": (
        (psycopg.Connection, "execute"),
        (psycopg.Copy, "write"),
        (psycopg.Copy, "__exit__"),
        (psycopg.Transaction, "__enter__"),
        (psycopg.Transaction, "__exit__"),
    ),
}


STEPS["one file"] = STEPS["file"]
STEPS["parquet"] = (
    (os, "fsync"),
    (Path, "rename"),
    (Path, "unlink"),
    (FileBucket, "create"),
    (FileBucket, "replace"),
    (ParquetWriter, "write_table"),
    (ParquetWriter, "close"),
)
STEPS["delta"] = (*STEPS["parquet"], (DeltaTable, "create"), (DeltaTable, "create_write_transaction"))
STEPS["iceberg"] = (*STEPS["parquet"], (SqlCatalog, "commit_table"), (SqlCatalog, "create_namespace"))

REQUESTS: tuple[tuple[Any, str], ...] = (
    (ObjectStoreBucket, "create"),
    (ObjectStoreBucket, "replace"),
    (ObjectStoreBucket, "delete"),
    (BucketPlace, "publish"),
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (SqlCatalog, "commit_table"),
)
"""Of a table in a bucket."""


class Countdown:
    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> bool:
        """Count a step. Returns whether to die at it."""
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0


countdown = Countdown()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if countdown.step():
        die()
    return call(*args, **kwargs)


def _dying_twice(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    done = _dying(call, *args, **kwargs)
    if countdown.step():
        die()
    return done


def _torn(write: Callable[..., Any], file: RealFile, offset: int, buffers: Any) -> None:
    """A step before the write, and one in the middle of it."""
    if countdown.step():
        die()
    if countdown.step():
        data = b"".join(map(bytes, buffers))
        write(file, offset, (data[: len(data) // 2],))
        die()
    write(file, offset, buffers)


class DyingDatabase(sqlite3.Connection):
    def execute(self, *args: Any) -> sqlite3.Cursor:
        if countdown.step():
            die()
        return super().execute(*args)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        given = [*rows]
        if countdown.step():
            super().executemany(statement, given[: len(given) // 2])
            die()
        return super().executemany(statement, given)


def make_mortal(kind: str, *, in_bucket: bool) -> None:
    for owner, name in REQUESTS if in_bucket else STEPS[kind]:
        call = getattr(owner, name)
        dying = _dying_twice if in_bucket else _torn if (owner, name) == (RealFile, "write") else _dying
        wrapped = partial(dying, call)
        setattr(owner, name, wrapped if owner is os else _method(wrapped))
    sqlite3.connect = partial(sqlite3.connect, factory=DyingDatabase)  # type: ignore[assignment]


def _method(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: wrapped(self, *args, **kwargs)


def deliver_second(store: Store, step: int, decision: str, notes: str) -> None:
    """Deliver the first epoch undisturbed, then the second one up to the step. `notes` exists once it has voted."""
    first, second = example(2)
    sink = store.sink()
    sink.open(b"")
    first.deliver(sink)
    countdown.left = step
    assert second.prepare(sink).yes
    Path(notes).touch()
    if decision == "commit":
        sink.commit(second.transaction)
    else:
        sink.abort()


def open_only(store: Store, step: int, decided: str) -> None:
    countdown.left = step
    store.sink().open(decided.encode())


def run(request: dict[str, Any]) -> None:
    store = KINDS[request["kind"]](request["place"])
    make_mortal(request["kind"], in_bucket="://" in store.place)
    if "decided" in request:
        open_only(store, request["step"], request["decided"])
    else:
        deliver_second(store, request["step"], request["decision"], request["notes"])


def main() -> None:
    """Forks for each request: importing all this takes longer than one run."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(json.loads(line))
            except BaseException as error:
                print(f"{error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class DyingStores:
    """For tests: sends requests to such a process, which has the credentials of a bucket in its environment."""

    def __init__(self, **environment: str) -> None:
        self._environment = environment

    def __enter__(self) -> "DyingStores":
        arguments = [sys.executable, "-m", "tests.connectors.stores.dying_store"]
        environment = {**os.environ, **self._environment}
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def killed_in_round(self, store: Store, step: int, decision: str, notes: Path) -> bool:
        """Whether there was such a step. `notes` exists if it voted before that."""
        return self._ask(store, step, decision=decision, notes=str(notes))

    def killed_in_open(self, store: Store, step: int, decided: bytes) -> bool:
        return self._ask(store, step, decided=decided.decode())

    def _ask(self, store: Store, step: int, **more: str) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"kind": store.kind, "place": store.place, "step": step} | more
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, KILLED), f"{request}: status {status}"
        return status == KILLED


if __name__ == "__main__":
    main()
