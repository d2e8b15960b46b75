"""Why a query ended, from Spark's exception, and errors in the user's code shown at the user's lines."""

import importlib.util
import inspect
import linecache
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import (
    BucketFailed,
    CheckpointFailed,
    LimitExceeded,
    NoRoom,
    PenstockError,
    RequestError,
    StoreFailed,
    Unavailable,
    WorkerFailed,
)
from penstock.protocol.api.pipelines import BatchRanges
from penstock.spark.carried import OtherVersion
from penstock.spark.pipelines import Pipeline

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_Framed = TypeVar("_Framed")

# Which frames of a traceback are the user's own.

_FRAMEWORKS = ("penstock", "pyspark", "py4j", "pyarrow", "tenacity", "msgspec", "pandas", "numpy", "numba")
"""Ours, Spark's, and what these two call: through them an error passes on its way to the user's code or from it."""
_INSTALLED = "site-packages"
_FRAMEWORK_FILE = re.compile(rf"[/\\](?:site|dist)-packages[/\\](?:{'|'.join(_FRAMEWORKS)})(?:\.zip)?[/\\]")
_PYTHONS_FILE = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages[/\\])")
"""On an executor Python and the packages may be in other folders than here."""


def is_the_users(file: str) -> bool:
    """Whether the file is neither ours, nor Spark's, nor Python's own."""
    if not file.endswith(".py") or file.startswith(("<", *_framework_folders())):
        return False
    return _FRAMEWORK_FILE.search(file) is None and not _is_pythons(file)


def _users_own(frames: Sequence[_Framed], file_of: Callable[[_Framed], str]) -> list[_Framed]:
    """The frames of the user's own files. Installed packages count only if there is no other: a user may install the
    pipelines as a package, too.
    """
    users = [frame for frame in frames if is_the_users(file_of(frame))]
    return [frame for frame in users if _INSTALLED not in file_of(frame)] or users


def place_of(error: BaseException) -> str | None:
    """The user's line that was running, such as `orders.py:12`; None if there is none."""
    own = _users_own(traceback.extract_tb(error.__traceback__), lambda frame: frame.filename)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def _is_pythons(file: str) -> bool:
    here = file.startswith(sysconfig.get_path("stdlib") + os.sep) and _INSTALLED not in file
    return here or _PYTHONS_FILE.search(file) is not None


@cache
def _framework_folders() -> tuple[str, ...]:
    found = (importlib.util.find_spec(name) for name in _FRAMEWORKS)
    return tuple(str(Path(spec.origin).parent) + os.sep for spec in found if spec is not None and spec.origin)


_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
_OURS = re.compile(r"(penstock(?:\.\w+)+): (.*)", re.DOTALL)
_JAVA_STACK = re.compile(r"\n+(\tat |Driver stacktrace:|Caused by: )")
_TEXT_CHARS_MAX = 4000
"""Spark repeats itself; its log has the full text."""

_SUMMARY_CHARS_MAX = 500
"""What the worker gets to know of a failure, for `penstock status`."""

_RANGES_MAX = 10
"""The most ranges of a batch that a message lists."""

_RANGES_IN_SUMMARY_MAX = 3

_WORKER_ENDED = "Python worker exited unexpectedly"
_ENDED_CAUSE = "the Python worker ended"
_ENDED_HINT = (
    "Look for os._exit() in your code and in what it calls, a crash in a native library (--conf "
    "spark.python.worker.faulthandler.enabled=true shows where), and the kernel's out-of-memory killer (dmesg)."
)

_NO_DAEMON = "penstock.spark.run.python_daemon"
"""In what Spark reports if an executor cannot start the processes of tasks."""
_NO_DAEMON_HINT = (
    "An executor cannot start the processes of tasks: it needs Python and Penstock as the driver has them. penstock "
    "check --master URL shows what each of them has."
)
_OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
"""In what PySpark reports from an executor with another Python."""

_OUTAGES = (Unavailable, NoRoom, BucketFailed, CheckpointFailed, StoreFailed, WorkerFailed, OtherVersion)
"""Something outside the pipeline cannot be reached or used now. It may take hours until it is back."""

_OF_ROWS = (RequestError, LimitExceeded)
"""What tasks raise for rows that cannot be written, among others."""

_OUTAGE = re.compile(r"(\w+\.)*(URLError|\w*(Connection|Timeout|Unavailable|Interrupted)\w*)")
"""Exceptions of a function's dependencies, by their names, such as a service that cannot be reached."""

_JAVA_OUTAGE = re.compile(r"java\.net\.(Connect|NoRouteToHost|UnknownHost|SocketTimeout)Exception")
"""Of Spark's own sources and sinks."""

_MAY_PASS = re.compile(r"(\w+\.)*(OS|IO)Error")
"""Too general to be called an outage. Retrying may help."""

_CAUSED_BY = "Caused by: "
_CAUSES_MAX = 10
"""Deeper causes than these have not been seen to say anything new."""
_STACK_TRACES = "spark.sql.pyspark.jvmStacktrace.enabled"
_STACK_TRACE = "\n\nJVM stacktrace:\n"
_ENDING_SECONDS_MAX = 10
"""Between the moment when a query is no longer active and the end of its thread."""
_ONE_WORD = re.compile(r"\S+")
"""As a message, such as the path of a missing file, it says nothing without the exception's class."""

_DATA_ERROR = re.compile(r"SQLSTATE: (22\w{3}|P0001)")
"""SQL's class of data exceptions, and `raise_error`."""
_TASK_FAILED = re.compile(r"Task \d+ in stage \d+\.\d+ failed|Lost task \d+\.\d+ in stage")
_ERROR_NAME = re.compile(r"\[[A-Z_.]+\]")

_CHANGE = (
    "To keep such events as dead letters, call the function through penstock.dead_letters.apply(frame, function, "
    "schema), and run the changed file again (penstock run, or penstock apply for an application)."
)


@dataclass(frozen=True, slots=True)
class Failure:
    """`is_final`: a restart of the query would not help. `is_outage`: it helps as soon as something outside is back,
    however long that takes. `cause`: what failed in the user's code, at which line; if the same cause occurs twice, the
    query would fail forever. None if the failure may be transient.
    """

    text: str
    hint: str = ""
    is_final: bool = False
    is_outage: bool = False
    cause: str | None = None
    is_of_a_batch: bool = False
    """Tasks have failed, for a reason that may be in what they have read."""
    batch: BatchRanges | None = None
    """What they have read, if that is known."""

    @classmethod
    def of(cls, error: PenstockError) -> "Failure":
        return _of_ours(type(error), str(error), error.hint)

    def at(self, batch: BatchRanges, pipeline: str) -> "Failure":
        """`pipeline`: its name for commands, with the file that it is defined in if they need that."""
        command = f"penstock pipeline bisect {pipeline}"
        find = f"Find the events that fail, and bury them so that the pipeline continues: {command}"
        return replace(self, batch=batch, hint="\n".join(filter(None, (find, self.hint))))

    @property
    def message(self) -> str:
        """The lines of code that led to the error, the error, and what was read."""
        return self.text if self.batch is None else f"{self.text}\n{ranges_text(self.batch)}"

    @property
    def advice(self) -> str:
        """What to do about it, in one line."""
        return self.hint.partition("\n")[0][:_SUMMARY_CHARS_MAX]

    @property
    def summary(self) -> str:
        """The error in one line, without the lines of code that led to it."""
        lines = [line for line in self.text.splitlines() if line and not line.startswith("  ")]
        text = ": ".join(lines)[:_SUMMARY_CHARS_MAX]
        return text if self.batch is None else f"{text}, {ranges_text(self.batch, _RANGES_IN_SUMMARY_MAX)}"


def exception_text(query: "StreamingQuery") -> str | None:
    """What ended the query, with the Java classes of the causes, of which Spark's own text has the messages alone. None
    if it ended without an error. Asks the JVM.
    """
    from pyspark.errors import StreamingQueryException

    if query.exception() is None:
        return None
    with _stack_traces_shown():
        try:
            query.awaitTermination(_ENDING_SECONDS_MAX)
        except StreamingQueryException as error:
            message, _, stack = str(error).partition(_STACK_TRACE)
            causes = [line for line in stack.splitlines() if line.startswith(_CAUSED_BY)]
            return "\n".join([message.rstrip(), *causes[:_CAUSES_MAX]])
    return str(query.exception())  # its thread takes longer to end


@contextmanager
def _stack_traces_shown() -> Iterator[None]:
    """In the texts of Spark's exceptions: there is no other public way to the causes."""
    from pyspark.sql import SparkSession

    conf = SparkSession.active().conf
    before = conf.get(_STACK_TRACES, None)
    conf.set(_STACK_TRACES, "true")
    try:
        yield
    finally:
        conf.set(_STACK_TRACES, before or "false")


def failure_of(exception: str) -> Failure:
    """From `exception_text`: the user's lines and the error for Python, otherwise Spark's message."""
    reason = exception.split("terminated with exception: ", 1)[-1].split("\n=== Streaming Query ===", 1)[0]
    reason = re.sub(r"( SQLSTATE: \w+)+\s*$", "", reason).rstrip()
    if _WORKER_ENDED in reason:
        text = "the Python worker ended in the middle of a task"
        return Failure(text, _ENDED_HINT, cause=_ENDED_CAUSE, is_of_a_batch=True)
    if _TRACEBACK not in reason:
        return _of_spark(exception, _without_java(reason)[:_TEXT_CHARS_MAX].rstrip())
    frames, error = _split(_without_java(reason.rpartition(_TRACEBACK)[2]))
    if (ours := _OURS.fullmatch(error)) and (kind_of_ours := _kinds_of_ours().get(ours[1])):
        text, _, hint = ours[2].partition("\n")  # one line, followed by the hint on the next
        failure = _of_ours(kind_of_ours, text, hint or kind_of_ours.hint)
        return replace(failure, is_of_a_batch=kind_of_ours in _OF_ROWS)
    text = "\n".join([*frames, error])[:_TEXT_CHARS_MAX]
    kind = error.partition(":")[0]
    if _OTHER_PYTHON in error:
        return Failure(text, OtherVersion.hint, is_outage=True)
    if _OUTAGE.fullmatch(kind):
        return Failure(text, is_outage=True)
    if not frames or _MAY_PASS.fullmatch(kind):
        return Failure(text, is_of_a_batch=True)
    return Failure(text, _CHANGE, cause=f"{kind} {_last_place(frames)}", is_of_a_batch=True)


def _of_spark(exception: str, text: str) -> Failure:
    """Spark's data errors, such as a division by zero, have a name in brackets."""
    if _ONE_WORD.fullmatch(text):
        named = re.search(rf"{_CAUSED_BY}([\w.$]+: {re.escape(text)})$", exception, re.MULTILINE)
        text = text if named is None else named[1]
    if _NO_DAEMON in exception:
        return Failure(text, _NO_DAEMON_HINT)
    if not _DATA_ERROR.search(exception):
        return Failure(
            text,
            is_outage=_JAVA_OUTAGE.search(exception) is not None,
            is_of_a_batch=_TASK_FAILED.search(exception) is not None,
        )
    name = _ERROR_NAME.search(text)
    return Failure(text, _CHANGE, cause=name[0] if name else text, is_of_a_batch=True)


def ranges_text(batch: BatchRanges, ranges_max: int = _RANGES_MAX) -> str:
    """The events of a batch, for people who look for the one that makes it fail."""
    named = len(batch.inputs) > 1
    ranges = [
        f"{f'{name}: ' if named else ''}{one.segment} @ {one.start} to {one.end}"
        for name, ranges in batch.inputs.items()
        for one in ranges
    ]
    more = f" and {len(ranges) - ranges_max} more" if len(ranges) > ranges_max else ""
    return f"at an event of epoch {batch.epoch}: {', '.join(ranges[:ranges_max]) or 'no events'}{more}"


def command_name(pipeline: Pipeline) -> str:
    """The pipeline's name, followed by its file: commands know where the pipelines of an application are, and no
    others.
    """
    function = inspect.unwrap(pipeline.function)
    if not inspect.isfunction(function):  # an application's is called by an object of ours
        return pipeline.name
    file = Path(function.__code__.co_filename)
    return f"{pipeline.name} {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}"


def _without_java(text: str) -> str:
    return _JAVA_STACK.split(text, maxsplit=1)[0].rstrip()


def _split(trace: str) -> tuple[list[str], str]:
    """The lines of the user's frames, and the error itself."""
    frames: list[list[str]] = []
    lines = trace.splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("  "):
            return _users_lines(frames), "\n".join(lines[number:]).rstrip()
        if frame := _FRAME.match(line):
            frames.append([line, *_source_line(frame, lines[number + 1])])
        elif frames:
            frames[-1].append(line)
    return _users_lines(frames), ""


def _users_lines(frames: Sequence[list[str]]) -> list[str]:
    return [line for frame in _users_own(frames, _file_of) for line in frame]


def _file_of(frame: list[str]) -> str:
    found = _FRAME.match(frame[0])
    assert found is not None
    return found[1]


def _source_line(frame: re.Match[str], following: str) -> list[str]:
    """Python on an executor does not have the user's file; the driver does."""
    text = "" if following.startswith("    ") else linecache.getline(frame[1], int(frame[2])).strip()
    return [f"    {text}"] if text else []


def _last_place(frames: list[str]) -> str:
    places = [f"{found[1]}:{found[2]}" for line in frames if (found := _FRAME.match(line))]
    return places[-1]


def _of_ours(kind: type[PenstockError], text: str, hint: str) -> Failure:
    return Failure(text, hint, is_final=issubclass(kind, RequestError), is_outage=issubclass(kind, _OUTAGES))


def _kinds_of_ours() -> dict[str, type[PenstockError]]:
    """By the full name that a traceback has. Some are defined beside the code that raises them."""
    found, left = {}, [PenstockError]
    while left:
        kind = left.pop()
        found[f"{kind.__module__}.{kind.__qualname__}"] = kind
        left += kind.__subclasses__()
    return found


# Runs the user's code, and shows its errors at the user's own lines.

_PLAN = ";\n"
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
_NO_SESSION_HINT = (
    "The file is loaded before Spark is started: use what needs Spark (columns, types written as text) inside the "
    "pipeline's function, or pass a type object: udf(returnType=StringType())."
)
_EXAMPLE = "Decorate a function with @pipeline: from penstock.spark import pipeline"


def load_pipelines(path: Path) -> list[Pipeline]:
    """Run the file and return its pipelines in the order in which it defines them. Raises RequestError at the user's
    line.

    The file's folder is added to the module path, as for a program.
    """
    if not path.is_file():
        raise RequestError(f"file {path} not found", "Name a Python file with a @pipeline function.")
    module = _run(path)
    found = list({id(p): p for p in vars(module).values() if isinstance(p, Pipeline)}.values())
    if not found:
        raise RequestError(f"{path} has no pipeline", _EXAMPLE)
    names = [pipeline.name for pipeline in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"{path} has two pipelines {twice[0]!r}", 'Rename one: @pipeline(name="…")')
    return found


def _run(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_pipelines"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise RequestError(f"{path} is not a Python file", "Its name must end in .py.")
    sys.path.insert(0, str(path.absolute().parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with shown_at_the_users_line(f"{path} cannot be loaded"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def shown_at_the_users_line(what: str) -> Iterator[None]:
    """Turns an exception into a RequestError: `what`, the user's lines that led to it, and the error."""
    try:
        yield
    except Exception as error:
        raise RequestError(f"{what}\n{_users_traceback(error)}", _hint(error)) from error


def _hint(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.hint
    return _NO_SESSION_HINT if _NO_SESSION in str(error) else ""


def _users_traceback(error: BaseException) -> str:
    """The error as Python prints it, without Spark's frames and ours."""
    frames = _users_own(traceback.extract_tb(error.__traceback__), lambda frame: frame.filename)
    return "".join([*traceback.format_list(frames), *_last_lines(error)]).rstrip()


def silence_spark() -> None:
    """PySpark also writes each error in a plan to stderr, as a page of JSON; we show it at the user's line instead.
    Py4J logs a traceback whenever the JVM is gone, even if we stopped it.
    """
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not str(record.msg).endswith("while sending command.")


def _last_lines(error: BaseException) -> list[str]:
    if isinstance(error, PenstockError):
        return [str(error)]
    if type(error).__module__.startswith("pyspark."):  # the whole plan follows its message
        return [f"{type(error).__name__}: {str(error).partition(_PLAN)[0]}"]
    if (thrown := getattr(error, "java_exception", None)) is not None:  # py4j's, whose own text is a page of Java
        return [thrown.toString()]
    return traceback.format_exception_only(type(error), error)
