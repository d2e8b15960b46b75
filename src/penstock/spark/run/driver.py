"""Spark's driver in this process and its JVM in a child process, which is always ended. PySpark keeps references to the
JVM in its classes: a process cannot have another one later.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.run.class_archive import ClassArchive, find_archive
from penstock.spark.run.failures import silence_spark
from penstock.spark.run.fork_server import fork_server
from penstock.spark.run.session import (
    JAVA_OPTIONS,
    interpreter_of,
    is_cluster,
    prepare_environment,
    spark_settings,
    with_conf,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_LOG_BYTES_MAX = 16 << 20
"""A log that is larger than this at the start is moved aside, replacing the previous one."""

_LOG_TAIL_BYTES = 2000
"""The end of the log, shown when Spark does not start."""

_END_SECONDS_MAX = 20.0
"""How long Spark may take to stop; then its JVM is killed."""

_CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""How a JVM ends when the files that it maps have been damaged."""

_STOP_QUERY = {"spark.sql.streaming.stopTimeout": "30s"}
"""How long a batch may take to end when its query is stopped: by default Spark waits forever."""


class SparkNotStarted(RequestError):
    """Its JVM did not start, the cluster has not accepted it, or the cluster's executors cannot run its tasks."""


class SparkDriver:
    """A session and its JVM."""

    def __init__(
        self,
        settings: Mapping[str, str],
        stderr: IO[bytes],
        log: Path,
        archive: ClassArchive | None = None,
        end_seconds_max: float = _END_SECONDS_MAX,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """The JVM writes its log to `stderr`, which is the file `log`. It maps `archive` if that is usable. Raises
        SparkNotStarted.
        """
        self._settings = settings
        self._stderr = stderr
        self.log = log
        self._archive = archive
        self._end_seconds_max = end_seconds_max
        self._report = report
        self.gateway: Any = None
        self.exit_status: int | None = None
        """Of the last JVM that was closed: 0 if it ended in order, negative if a signal ended it."""
        self._start()

    def _start(self) -> None:
        self._report("its JVM")
        with _new_children_killed_on_error():
            self.gateway = self._launch()
        _log.info("Spark's JVM runs")
        self._report("its session")
        try:
            self.session = _session(self.gateway, self._settings, self.log)
            _log.info("Spark's session is ready")
        except BaseException:
            self.close()
            raise

    def _launch(self) -> Any:
        """A JVM that does not start with the class archive is started without."""
        options = self._archive.options() if self._archive is not None else ""
        if self._archive is None or not options:
            return _launch(self._settings, self._stderr, self.log)
        try:
            return _launch(with_conf({JAVA_OPTIONS: options}, self._settings), self._stderr, self.log)
        except RequestError:
            gateway = _launch(self._settings, self._stderr, self.log)
        _log.warning("Spark's JVM does not start with the class archive %s, which is deleted", self._archive.path)
        self._archive.discard()
        return gateway

    def ended(self, within_seconds: float = 0.0) -> str | None:
        """How the JVM has ended, or ends now, in words that follow "Spark's JVM"; None: it runs."""
        if self.gateway is None:
            return None
        try:
            status = self.gateway.proc.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return None
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"

    def close(self) -> None:
        """The JVM has ended then, killed if necessary. Idempotent."""
        gateway, self.gateway = self.gateway, None
        if gateway is not None:
            self.exit_status = _end(gateway, self._end_seconds_max)
            if self._archive is not None and self.exit_status in _CRASHES:
                self._archive.discard()  # it may be the reason


@contextmanager
def spark_driver(
    name: str,
    master: str,
    conf: Mapping[str, str],
    log: Path,
    *,
    uses_archive: bool = True,
    end_seconds_max: float = _END_SECONDS_MAX,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[SparkDriver]:
    """A driver whose JVM writes its log to `log`; its stdout still goes to the terminal, for Spark's console sink. The
    JVM has ended when the context exits. `report`: is called with what the start waits for. Raises SparkNotStarted.
    """
    archive = find_archive() if uses_archive else None
    prepare_environment(master)
    sockets = tempfile.mkdtemp(prefix="penstock-")
    # The machines of executors do not have this folder: they use their own for temporary files.
    folder = {} if is_cluster(master) else {"spark.python.unix.domain.socket.dir": sockets}
    ours = spark_settings(master) | _STOP_QUERY | folder
    settings = with_conf(ours, {**conf, "spark.master": master, "spark.app.name": name})
    try:
        with (
            _opened(log) as stderr,
            _forking(Path(sockets), stderr),
            closing(SparkDriver(settings, stderr, log, archive, end_seconds_max, report)) as driver,
        ):
            yield driver
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _forking(folder: Path, log: IO[bytes]) -> AbstractContextManager[None]:
    """For the processes of this machine: those of executors do not know of it. A Python that the user has chosen is
    started as it is.
    """
    python = os.environ["PYSPARK_PYTHON"]
    return nullcontext() if interpreter_of(python) == python else fork_server(folder, log)


def _opened(log: Path) -> IO[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_suffix(log.suffix + ".1"))
    return log.open("ab")


def _conf(settings: Mapping[str, str]) -> Any:
    from pyspark import SparkConf

    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _launch(settings: Mapping[str, str], stderr: IO[bytes], log: Path) -> Any:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    start = stderr.tell()
    try:
        return launch_gateway(_conf(settings), {"stderr": stderr})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _LOG_TAIL_BYTES))
            tail = file.read().decode(errors="replace").strip()
        raise SparkNotStarted(f"Spark did not start:\n{tail}", f"See {log}.") from None


@contextmanager
def _new_children_killed_on_error() -> Iterator[None]:
    """Until PySpark returns its JVM, only the list of our child processes names it. If PySpark is interrupted before
    that, it deletes the folder to which the JVM reports its port, and the JVM would run forever.
    """
    before = _children()
    try:
        yield
    except BaseException:
        for pid in _children() - before:
            with suppress(ProcessLookupError, ChildProcessError):  # PySpark has already seen it end
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        raise


def _children() -> set[int]:
    """The process ids of our children; none where there is no /proc."""
    parents = {int(stat.parent.name): _parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return {pid for pid, parent in parents.items() if parent == os.getpid()}


def _parent(stat: Path) -> int | None:
    """None for a process that has ended. The process name before these fields may contain any character."""
    try:
        _, _, fields = stat.read_bytes().rpartition(b")")
    except OSError:
        return None
    return int(fields.split()[1])


def _session(gateway: Any, settings: Mapping[str, str], log: Path) -> SparkSession:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.datasource import PenstockDataSource

    silence_spark()
    socketserver.BaseServer.handle_error = _report_error  # type: ignore[assignment, method-assign]
    try:
        SparkContext(conf=_conf(settings), gateway=gateway)
    except Py4JJavaError as error:  # a cluster that does not accept it, for example; its own text is a page of Java
        raise SparkNotStarted(f"Spark did not start: {error.java_exception.toString()}", f"See {log}.") from None
    session = SparkSession.builder.getOrCreate()
    # Otherwise Spark starts a Python process to look for it, and another daemon: the functions of data sources that it
    # finds have a PYTHONPATH of their own.
    session.dataSource.register(PenstockDataSource)
    return session


def _report_error(server: socketserver.BaseServer, request: object, client_address: object) -> None:  # noqa: ARG001
    """In place of a traceback on stderr. A thread of PySpark's context serves the JVM: if that ends first, as after a
    signal to all processes, it is no failure.
    """
    error = sys.exception()
    if not isinstance(error, EOFError | ConnectionError):
        _log.error("%s: %r", type(server).__name__, error)


def _end(gateway: Any, seconds_max: float) -> int:
    """Stop the JVM cleanly if it answers in time and nothing interrupts; otherwise kill it. Returns its exit status."""
    try:
        _stop(gateway)
        gateway.proc.wait(seconds_max)
    except subprocess.TimeoutExpired:
        pass
    finally:
        gateway.proc.kill()  # does nothing if it has ended
        gateway.proc.wait()
    status: int = gateway.proc.returncode
    return status


def _stop(gateway: Any) -> None:
    """The JVM ends by itself when its stdin is closed."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the JVM is gone already: that is what we want
        session = SparkSession.getActiveSession()  # asks the JVM
        if session is not None:
            session.stop()
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
