"""An archive of Spark's classes: a JVM that maps it need not load and verify them, which is half the work of its start.

python -m tests.support.java_archive     makes it, unless it is there (script/test does)
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.core.errors import RequestError
from penstock.spark.run.java import find_java, use_java


def archive() -> Path | None:
    """Where it belongs: beside the packages, for this Java and this Spark. None where Spark cannot run."""
    try:
        return Path(sys.prefix) / f"spark-{version('pyspark')}-java-{find_java().version}.jsa"
    except (ModuleNotFoundError, RequestError):
        return None


def options() -> str:
    """For a JVM that uses it. One that does not fit is left aside, without a word in a test's output."""
    path = archive()
    return f" -XX:SharedArchiveFile={path} -Xlog:disable" if path is not None and path.exists() else ""


def make(path: Path) -> None:
    """By a session that runs a pipeline with a window, and writes down its classes when it ends."""
    from penstock.spark.run.session import build_session
    from tests.support.running_worker import running_worker
    from tests.windows.spark.running import Bench
    from tests.windows.spark.test_pipelines import per_shop

    unfinished = path.with_suffix(".unfinished")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    use_java()
    session = build_session("archive", "local[2]", {"spark.log.level": "ERROR"})
    with TemporaryDirectory() as folder, running_worker(Path(folder) / "data") as worker:
        bench = Bench(worker, session, Path(folder))
        bench.send((1_000, {"shop": "a"}), (99_000, {"shop": "b"}))
        bench.run(per_shop)
    gateway = session.sparkContext._gateway
    assert gateway is not None, "the session runs"
    session.stop()
    process = gateway.proc
    process.stdin.close()  # it ends when its parent is gone
    process.wait()
    unfinished.rename(path)


if __name__ == "__main__":
    found = archive()
    if found is not None and not found.exists():
        make(found)
