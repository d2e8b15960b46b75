"""Runs what the user has written, and shows its errors at the user's own lines."""

import importlib.util
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from penstock.core.errors import PenstockError, RequestError
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.failures import is_the_users

_PLAN = ";\n"
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
_NO_SESSION_HINT = (
    "The file is loaded before Spark is started: use what needs Spark (columns, types written as text) inside the "
    "pipeline's function, or pass a type object: udf(returnType=StringType())."
)
_EXAMPLE = "Decorate a function with @pipeline: from penstock.spark import pipeline"


def load_pipelines(path: Path) -> list[Pipeline]:
    """Run the file; its pipelines in the order they stand in it. Raises RequestError at the user's line.

    Its folder is put on the path of modules, as for a program.
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
        raise RequestError(f"{what}\n{told(error)}", _hint(error)) from error


def _hint(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.hint
    return _NO_SESSION_HINT if _NO_SESSION in str(error) else ""


def told(error: BaseException) -> str:
    """The error as Python tells it, without the frames of Spark and of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_the_users(frame.filename)]
    return "".join([*traceback.format_list(frames), *_last_lines(error)]).rstrip()


def silence_spark() -> None:
    """PySpark writes each error of a plan to stderr as well, as a page of JSON: here `told` says what it is. Py4J
    writes a traceback whenever the JVM is gone, also when it was told to go.
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
    if type(error).__module__.startswith("pyspark."):  # behind its words comes the whole plan
        return [f"{type(error).__name__}: {str(error).partition(_PLAN)[0]}"]
    if (thrown := getattr(error, "java_exception", None)) is not None:  # py4j's, whose own text is a page of Java
        return [thrown.toString()]
    return traceback.format_exception_only(type(error), error)
