"""Spark's driver in this process and its JVM in a child process, which is always ended, and can be replaced."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.run.class_archive import ClassArchive, find_archive
from penstock.spark.run.failures import silence_spark
from penstock.spark.run.fork_server import fork_server
from penstock.spark.run.session import JAVA_OPTIONS, cores_of, prepare_environment, spark_settings, with_conf

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


class SparkDriver:
    """A session and its JVM. `restart` replaces both, after the JVM has ended or no longer answers."""

    def __init__(
        self,
        settings: Mapping[str, str],
        stderr: IO[bytes],
        log: Path,
        archive: ClassArchive | None = None,
        end_seconds_max: float = _END_SECONDS_MAX,
    ) -> None:
        """The JVM writes its log to `stderr`, which is the file `log`. It maps `archive` if that is usable. Raises
        RequestError if it does not start.
        """
        self._settings = settings
        self._stderr = stderr
        self._log = log
        self._archive = archive
        self._end_seconds_max = end_seconds_max
        self.gateway: Any = None
        self.exit_status: int | None = None
        """Of the last JVM that was closed: 0 if it ended in order, negative if a signal ended it."""
        self._start()

    def _start(self) -> None:
        with _new_children_killed_on_error():
            self.gateway = self._launch()
        _log.info("Spark's JVM runs")
        try:
            self.session = _session(self.gateway, self._settings)
            _log.info("Spark's session is ready")
        except BaseException:
            self.close()
            raise

    def _launch(self) -> Any:
        """A JVM that does not start with the class archive is started without."""
        options = self._archive.options() if self._archive is not None else ""
        if self._archive is None or not options:
            return _launch(self._settings, self._stderr, self._log)
        try:
            return _launch(with_conf({JAVA_OPTIONS: options}, self._settings), self._stderr, self._log)
        except RequestError:
            gateway = _launch(self._settings, self._stderr, self._log)
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

    def restart(self) -> SparkSession:
        """A new session in a new JVM. Everything of Spark's that belongs to the previous one is of no use any more.
        Raises RequestError if it does not start; may be called again.
        """
        if self._archive is not None and self.gateway is not None and self.gateway.proc.poll() in _CRASHES:
            self._archive.discard()  # it may be the reason
        self.close()
        self._start()
        return self.session

    def close(self) -> None:
        """The JVM has ended then, killed if necessary. Idempotent."""
        gateway, self.gateway = self.gateway, None
        if gateway is not None:
            self.exit_status = _end(gateway, self._end_seconds_max)
            _forget(gateway)


@contextmanager
def spark_driver(
    name: str,
    master: str,
    conf: Mapping[str, str],
    log: Path,
    *,
    uses_archive: bool = True,
    end_seconds_max: float = _END_SECONDS_MAX,
) -> Iterator[SparkDriver]:
    """A driver whose JVM writes its log to `log`; its stdout still goes to the terminal, for Spark's console sink. The
    JVM has ended when the context exits. Raises RequestError if it does not start.
    """
    archive = find_archive() if uses_archive else None
    prepare_environment(master)
    sockets = tempfile.mkdtemp(prefix="penstock-")
    ours = spark_settings(master) | _STOP_QUERY | {"spark.python.unix.domain.socket.dir": sockets}
    settings = with_conf(ours, {**conf, "spark.master": master, "spark.app.name": name})
    try:
        with (
            _opened(log) as stderr,
            _forking(master, Path(sockets), stderr),
            closing(SparkDriver(settings, stderr, log, archive, end_seconds_max)) as driver,
        ):
            yield driver
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _forking(master: str, folder: Path, log: IO[bytes]) -> AbstractContextManager[None]:
    """On a cluster, the executors' machines have no fork server."""
    return nullcontext() if cores_of(master) is None else fork_server(folder, log)


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
        raise RequestError(f"Spark did not start:\n{tail}", f"See {log}.") from None


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


def _session(gateway: Any, settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.datasource import PenstockDataSource

    silence_spark()
    context = SparkContext(conf=_conf(settings), gateway=gateway)
    # A thread of it reads from the JVM. It does not fail if the JVM ends first, as after a signal to all processes.
    context._accumulatorServer.handle_error = _ignore_end  # type: ignore[method-assign]  # noqa: SLF001
    session = SparkSession.builder.getOrCreate()
    # Otherwise Spark starts a Python process to look for it, and another daemon: the functions of data sources that it
    # finds have a PYTHONPATH of their own.
    session.dataSource.register(PenstockDataSource)
    return session


def _ignore_end(request: Any, client_address: Any) -> None:  # noqa: ARG001  the parameters of socketserver
    error = sys.exception()
    if not isinstance(error, EOFError | ConnectionError):
        _log.error("PySpark's accumulators: %r", error)


def _end(gateway: Any, seconds_max: float) -> int:
    """Stop the JVM cleanly if it answers in time and nobody interrupts; otherwise kill it. Returns its exit status."""
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
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the JVM is gone already: that is what we want
        session = SparkSession.getActiveSession()  # asks the JVM
        if session is not None:
            session.stop()
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()


def _forget(gateway: Any) -> None:
    """PySpark keeps references to the JVM in its classes, and does not expect another one in the same process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.context import SQLContext

    with suppress(Exception):  # Py4J raises all kinds of errors if the JVM has gone
        gateway.shutdown_callback_server()
    context = SparkContext._active_spark_context  # noqa: SLF001
    if context is not None:
        context._jsc = None  # noqa: SLF001  otherwise it would ask the JVM to stop
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    SQLContext._instantiatedContext = None  # noqa: SLF001
    _forget_functions()


def _forget_functions() -> None:
    """A user's function keeps its counterpart in the JVM from its first use on. It is usually defined once, at the top
    of a file, and must work in the next JVM.
    """
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.sql.udtf import UserDefinedTableFunction

    for held in gc.get_objects():
        if type(held) is UserDefinedFunction:
            held._judf_placeholder = None  # noqa: SLF001
        elif type(held) is UserDefinedTableFunction:
            held._judtf_placeholder = None  # noqa: SLF001
