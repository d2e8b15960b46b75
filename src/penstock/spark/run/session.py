"""Spark settings, each with its reason, and a session that uses them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.spark.run.java import NEEDED, NEEDED_TO_CONNECT, check_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_PYTHON = Path(__file__).with_name("python")
"""Starts this interpreter without Spark's zip on its path. Not used if an installation has lost its executable bit."""

_INTERPRETER = "PENSTOCK_SPARK_PYTHON"
"""The variable that names it."""

_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVM that composes the command line of Spark's: it lives for less than a second."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_LOCAL_CORES = re.compile(r"local(?:\[(\*|\d+)(?:\s*,\s*\d+)?\])?$")
_CLUSTERS = re.compile(r"spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*|yarn|k8s://\S+|local-cluster\[.+\]")
"""What Spark accepts beside local masters: standalone, with its standby masters, YARN, Kubernetes, its own tests."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_JAVA = (
    # A fork of a large JVM copies its page tables, vfork does not: 30 ms of every batch.
    "-Djdk.lang.Process.launchMechanism=VFORK",
    # Ten times Java's defaults: what a start and its first epoch call often enough for the optimizing compiler is
    # mostly never called again. A fifth of a recovery's CPU time; a query that runs on gets there a little later.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

_LOCAL = {
    # Spark's default syncs and renames through Hadoop's shell-outs: 30 ms of every batch. On the file systems of a
    # cluster, that is what replaces files atomically.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Everything runs on this machine: a host name that resolves to another address must not matter.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_FIXED = {
    JAVA_OPTIONS: " ".join(_JAVA),
    # To the Python workers without TCP: 35 ms of every batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Python processes that are forked with what they need, instead of importing it: a second of CPU time for each.
    "spark.python.daemon.module": "penstock.spark.run.python_daemon",
    # Spark starts a Python daemon for each set of environment variables, and sets one for this, but not for every
    # operator. Without it they share a daemon, which takes a second of CPU time to start. We filter frames ourselves.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # State on disk rather than in the heap, and only its changes in each batch's checkpoint.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Otherwise Spark measures its buffer after every row that it sends to Python: 0.7 µs each. A batch is bounded
    # anyway: by 10,000 rows, and by how much of an epoch a task reads.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Event times are instants; a result must not depend on where it was computed.
    "spark.sql.session.timeZone": "UTC",
    # A port and a web server that nothing asked for.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def cores_of(master: str) -> int | None:
    """How many tasks run at once; None if only the cluster knows."""
    found = _LOCAL_CORES.match(master)
    if found is None:
        return None
    match found[1]:
        case None:
            return 1
        case "*":
            return os.cpu_count() or 1
        case number:
            return int(number)


def spark_settings(master: str = LOCAL) -> dict[str, str]:
    """The settings with which a session runs our pipelines fast. On a cluster the number of shuffle partitions is
    decided when a pipeline starts: it follows the buckets of its windows.
    """
    cores = cores_of(master)
    if cores is None:
        return _FIXED | {f"spark.executorEnv.{_INTERPRETER}": sys.executable}
    return {**_FIXED, **_LOCAL, SHUFFLE_PARTITIONS: str(cores)}


def with_conf(settings: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """`conf` overrides the settings. Its options for Java follow those in the settings: of two values Java takes the
    later one.
    """
    options = " ".join(each[JAVA_OPTIONS] for each in (settings, conf) if each.get(JAVA_OPTIONS))
    return {**settings, **conf, **({JAVA_OPTIONS: options} if options else {})}


def is_cluster(master: str) -> bool:
    """Whether tasks run in processes that the driver has not started, mostly on other machines."""
    return cores_of(master) is None


def check_master(master: str) -> None:
    """Raises RequestError for what Spark does not know either: otherwise it would count as a cluster."""
    if is_cluster(master) and _CLUSTERS.fullmatch(master) is None:
        raise RequestError(
            f"--master {master!r} is not a Spark master",
            "Write local[*], local[4], spark://HOST:PORT, yarn or k8s://https://HOST:PORT.",
        )


def interpreter_of(python: str) -> str:
    """The interpreter that Spark's Python processes run, if this is the program that it starts for them."""
    return sys.executable if python == str(_PYTHON) else python


def sets_partitions(spark: SparkSession) -> bool:
    """Whether the number of shuffle partitions is configured: here, with --conf or in spark-defaults.conf."""
    return spark.sparkContext.getConf().contains(SHUFFLE_PARTITIONS)


def prepare_environment(master: str = LOCAL) -> None:
    """For the JVM that is started next, and its Python workers: this interpreter, this machine. Executors of a cluster
    have the same environment at the same path, unless the user has chosen another Python for them.
    """
    python = str(_PYTHON) if os.access(_PYTHON, os.X_OK) else sys.executable
    if is_cluster(master):
        python = os.environ.get("PYSPARK_PYTHON", python)
    else:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark uses the driver's setting for the processes of data sources that it finds by itself, as it finds ours if
    # nothing registers it.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ[_INTERPRETER] = sys.executable
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _SHORT_LIVED)


def build_session(name: str, master: str = LOCAL, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with these settings; `conf` overrides them, as `with_conf` does."""
    from pyspark.sql import SparkSession

    prepare_environment(master)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in with_conf(spark_settings(master), conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def connect(url: str) -> SparkSession:
    """A session of Spark Connect on the server at this URL (`sc://HOST:PORT`), with those of the settings that a
    session may change. Raises RequestError if the extra `connect` is not installed.
    """
    check_installed(NEEDED)
    check_installed(NEEDED_TO_CONNECT, what="sessions of Spark Connect", extra="connect")
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(url).getOrCreate()
    for key, value in {**_FIXED, **_LOCAL}.items():
        if key.startswith("spark.sql.") and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: its JVM is a server's."""
    from pyspark.errors import PySparkAttributeError

    try:
        return session.sparkContext is None
    except PySparkAttributeError:
        return True


def main() -> None:
    """Print the settings for a master, as a file of properties for spark-submit and Spark's servers."""
    (master,) = sys.argv[1:] or (LOCAL,)
    for key, value in ({"spark.master": master} | spark_settings(master)).items():
        print(f"{key} {value}")  # noqa: T201  what it is for


if __name__ == "__main__":
    main()
