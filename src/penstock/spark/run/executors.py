"""The check of a Spark cluster's executors: each has the driver's versions, reaches the worker, and knows the time.

Spark runs the probe on them by `RDD.pipe`, in a process of its own: it needs neither the driver's version of Python nor
Penstock there, whose absence a task could not report. What the probe needs to know is its input, which nothing shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client.credentials import parse_worker, read_token
from penstock.core.address import is_loopback
from penstock.spark.run import executor_probe
from penstock.spark.run.driver import SparkDriver, SparkNotStarted
from penstock.spark.run.executor_probe import MARK, PACKAGES, version_of, versions
from penstock.spark.run.generation import ExecutorAccess
from penstock.spark.run.session import interpreter_of, is_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK_SECONDS_MAX = 30.0
"""How far an executor's clock may be off: certificates, and times in logs, are of no use beyond that."""

EXECUTORS_SECONDS_MAX = 180.0
"""How long a cluster may take to run the probe. A standalone cluster takes seconds, one that has to start containers a
minute or two."""

_ROUNDS_MAX = 8
"""Spark decides where tasks run: executors that have registered late, or got no task, are asked in the next round."""

_SETTLE_SECONDS = 2.0
"""Executors that are started together register one after the other: this long after the last one, no more are expected.
"""

_LOOK_SECONDS = 0.1

_TASKS_PER_EXECUTOR = 4
"""Spark gives each executor one before it gives any of them another, if all are free. More, in case they are not."""

_TASKS_MIN = 16
"""As long as hardly any executor has registered; fewer if there are not as many cores."""

_EXACT = ("penstock",)
"""What tasks and driver exchange between them has no versions of its own. Others may differ in their last number."""

_TOKEN_FILE_SETTING = "spark.executorEnv.PENSTOCK_TOKEN_FILE"  # noqa: S105  its name
_TLS = "spark.ssl.rpc.enabled"
_AUTHENTICATION = "spark.authenticate"
_ENCRYPTIONS = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption")
"""Without authentication, Spark ignores them."""

_SCRIPT = """command -v "$0" > /dev/null 2>&1 && exec "$0" -c "$1"
echo '%s{"host": "'"$(uname -n)"'", "executor": "'"$PPID"'", "time": 0, "versions": {}}'
"""
"""A missing Python is an answer, too, and not a failed task."""


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """`http`, `segment`: why that port of the worker cannot be used; "" if it can be, None if it was not tried.
    `versions`: empty without a Python.
    """

    executor: str
    host: str
    versions: Mapping[str, str]
    clock_seconds: float
    """How far its clock is ahead of ours; 0 if it is not known to be off."""
    http: str | None = None
    segment: str | None = None
    lacks: str = ""
    """The program that Spark starts for its Python processes, if it is not there."""

    def differences(self, ours: Mapping[str, str], python: str) -> Iterator[str]:
        """In words that follow "executor 3 on HOST". None: tasks of this driver can run there."""
        if not self.versions:
            yield f"has no Python at {python}"
            return
        for name in ("python", *PACKAGES):
            there = self.versions.get(name, "")
            if not _fits(name, there, ours[name]):
                yield f"has {_named(name)} {there}, not {ours[name]}" if there else f"has no {_named(name)}"
        if self.lacks:
            yield f"cannot run {self.lacks}"
        if abs(self.clock_seconds) > CLOCK_SECONDS_MAX:
            ahead = "ahead" if self.clock_seconds > 0 else "behind"
            yield f"has a clock that is {abs(self.clock_seconds):,.0f} s {ahead}"
        for port, reason in (("HTTP", self.http), ("segment", self.segment)):
            if reason and not (port == "segment" and self.http):
                yield f"cannot use the worker's {port} port: {reason}"

    def as_json(self, ours: Mapping[str, str], python: str) -> dict[str, Any]:
        return asdict(self) | {"differences": [*self.differences(ours, python)]}


def _named(package: str) -> str:
    return {"python": "Python", "penstock": "Penstock", "pyspark": "PySpark"}.get(package, package)


def _fits(name: str, there: str, here: str) -> bool:
    return there == here if name in _EXACT else there.split(".")[:2] == here.split(".")[:2]


@dataclass(frozen=True, slots=True)
class Checked:
    """All executors, in order."""

    python: str
    """The path of the Python that tasks use."""
    worker: str
    """Its address on executors; "": it was not tried."""
    reports: Sequence[ExecutorReport]
    ours: Mapping[str, str]

    def differences(self) -> list[str]:
        return [
            f"executor {one.executor} on {one.host} {difference}"
            for one in self.reports
            for difference in one.differences(self.ours, self.python)
        ]

    def require(self) -> None:
        """Raises SparkNotStarted if tasks of this driver cannot run on all of them."""
        found = self.differences()
        if found:
            raise SparkNotStarted("\n  ".join(["Spark's executors cannot run the pipelines:", *found]), self.hint())

    def hint(self) -> str:
        """What to do about the differences."""
        hints = []
        if any(one.http or one.segment for one in self.reports):
            hints.append(self._worker_hint())
        if any(not self._has_ours(one) for one in self.reports):
            hints.append(
                f"Executors need this environment ({self.python}) at the same path, with the same versions; "
                "PYSPARK_PYTHON names another Python for driver and executors."
            )
        if any(abs(one.clock_seconds) > CLOCK_SECONDS_MAX for one in self.reports):
            hints.append("Set the clocks of these machines by NTP.")
        return " ".join(hints)

    def _has_ours(self, report: ExecutorReport) -> bool:
        return not report.lacks and all(
            _fits(name, report.versions.get(name, ""), self.ours[name]) for name in self.ours
        )

    def _worker_hint(self) -> str:
        if is_loopback(parse_worker(self.worker)[0].host):
            return (
                f"{self.worker} is a loopback address: on each machine it means that machine. Start penstock worker "
                "with --host and --http-host, and name it with --worker, or with --advertised-worker as executors "
                "reach it."
            )
        return (
            f"Executors must reach the worker at {self.worker}; --advertised-worker names another address. In a "
            "cluster they must reach all processes: penstock cluster status --json lists their ports."
        )


def check_executors(driver: SparkDriver, worker: str | None, access: ExecutorAccess | None) -> Checked:
    """Runs the probe on every executor. `worker`: its address here; None: no worker is tried. Raises SparkNotStarted if
    the cluster does not run it, or not in time.
    """
    context = driver.session.sparkContext
    address = "" if worker is None else worker if access is None else access.advertised
    python = interpreter_of(context.pythonExec)
    asked = json.dumps(
        {
            "python": context.pythonExec,
            "worker": address,
            "token": _token(worker, access),
            "penstock": version_of("penstock"),
        }
    )
    command = ["/bin/sh", "-c", _SCRIPT % MARK, python, Path(executor_probe.__file__).read_text()]
    with _errors_of_spark(driver.log):
        probe = _Probe(driver.gateway, command, asked)
        found = reports_of_all(probe, _SETTLE_SECONDS if is_cluster(str(context.master)) else 0.0)
    ordered = sorted(found, key=lambda one: (len(one.executor), one.executor))
    return Checked(python, address, ordered, versions())


class Probing(Protocol):
    """Asks executors."""

    def executors(self) -> int:
        """How many have registered."""

    def run(self) -> Iterable[ExecutorReport]:
        """Of the executors that Spark has chosen, one or more of each."""


def reports_of_all(probe: Probing, settle_seconds: float) -> Collection[ExecutorReport]:
    """One of each executor, as far as Spark gives it a task. An executor that has reached the worker once can."""
    found: dict[tuple[str, str], ExecutorReport] = {}
    for _ in range(_ROUNDS_MAX):
        for one in probe.run():
            before = found.get((one.host, one.executor))
            if before is None or before.http or before.segment:
                found[one.host, one.executor] = one
        if len(found) >= probe.executors() and not _more_register(probe, len(found), settle_seconds):
            break
    return found.values()


def _more_register(probe: Probing, known: int, seconds: float) -> bool:
    """Whether it happens within this time."""
    deadline = time.monotonic() + seconds
    while probe.executors() <= known:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def tasks_of_a_round(parallelism: int, executors: int) -> int:
    """Enough that all of them get one. `parallelism`: Spark's default, which is the number of cores, unless the user
    has set another one, which may be any.
    """
    return max(executors, min(parallelism, max(_TASKS_MIN, _TASKS_PER_EXECUTOR * executors)))


@contextmanager
def _errors_of_spark(log: Path) -> Iterator[None]:
    """As SparkNotStarted: their own text is a page of Java."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        reason = error.java_exception.toString().partition("\n")[0]
        raise SparkNotStarted(f"Spark's cluster cannot run tasks: {reason}", f"See {log}.") from None
    except (Py4JError, ConnectionError):
        raise SparkNotStarted("Spark's JVM has ended while the executors were checked", f"See {log}.") from None


def _token(worker: str | None, access: ExecutorAccess | None) -> str:
    """Not sent where executors have a file of their own."""
    if worker is None or (access is not None and not access.carries_token):
        return ""
    return read_token(parse_worker(worker)[0])


class _Probe:
    def __init__(self, gateway: Any, command: Sequence[str], asked: str) -> None:
        self._command = [*command]
        self._asked = asked
        self._context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        self._java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(self._context)

    def executors(self) -> int:
        """Spark's list has the driver, too. With a local master that is the only one."""
        return max(1, len(self._context.statusTracker().getExecutorInfos()) - 1)

    def run(self) -> Iterable[ExecutorReport]:
        count = tasks_of_a_round(self._context.defaultParallelism(), self.executors())
        before = time.time()
        lines = self._collected(self._java.parallelize([self._asked] * count, count).pipe(self._command))
        after = time.time()
        return [_report(line.removeprefix(MARK), before, after) for line in lines if line.startswith(MARK)]

    def _collected(self, rdd: Any) -> list[str]:
        """In a thread of its own: Spark waits forever for executors that never come."""
        with ThreadPoolExecutor(1, "executor check") as pool:
            lines = pool.submit(lambda: [*rdd.collect()])
            try:
                return lines.result(EXECUTORS_SECONDS_MAX)
            except TimeoutError:
                raise SparkNotStarted(
                    f"Spark's cluster has not run the check of its executors within {EXECUTORS_SECONDS_MAX:.0f} s",
                    "Look at its UI: are there workers with free cores and memory for this application, and do its "
                    "executors reach the driver (spark.driver.host, spark.driver.port)?",
                ) from None
            finally:
                if not lines.done():
                    self._context.cancelAllJobs()


def _report(line: str, before: float, after: float) -> ExecutorReport:
    given = json.loads(line)
    now = given["time"] if given["versions"] else before
    off = min(now - before, 0.0) + max(now - after, 0.0)
    others = given.get("http"), given.get("segment"), given.get("lacks", "")
    return ExecutorReport(given["executor"], given["host"], given["versions"], off, *others)


# How executors get the token.


def has_token_file(conf: Mapping[str, str]) -> bool:
    """Whether executors have one of their own: then none is carried to them."""
    return _TOKEN_FILE_SETTING in conf


def carrying_warning(session: SparkSession, worker: str, access: ExecutorAccess) -> str | None:
    """None unless the token travels where others may read it."""
    is_safe = is_encrypted(dict(session.sparkContext.getConf().getAll()))
    is_here = is_loopback(parse_worker(access.advertised)[0].host)
    if is_safe or is_here or not access.carries_token or not read_token(parse_worker(worker)[0]):
        return None
    return (
        "the worker's token reaches executors over Spark's connections, which are not encrypted: "
        f"set {_AUTHENTICATION} and {_ENCRYPTIONS[0]}, or put the token into a file on each machine: "
        f"--conf {_TOKEN_FILE_SETTING}=FILE"
    )


def is_encrypted(conf: Mapping[str, str]) -> bool:
    """Whether Spark's connections are, by which its code travels."""

    def is_on(name: str) -> bool:
        return conf.get(name, "").strip().lower() == "true"

    return is_on(_TLS) or (is_on(_AUTHENTICATION) and any(map(is_on, _ENCRYPTIONS)))
