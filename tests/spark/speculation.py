"""A driver on a cluster of two workers, which runs slow tasks a second time. A program of its own: Spark on one machine
in one process never does.

    python -m tests.spark.speculation WORKER'S_HTTP_ADDRESS FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penstock import dead_letters
from penstock.spark import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark runs the second attempt of a task on another host only."""

SLOW = 4
"""The number of the row that two attempts meet at."""

MEET_SECONDS_MAX = 100.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For executors that live for seconds."""


def slow_pipeline(folder: str) -> Pipeline:
    """The first attempt at the slow row waits for the second one; then both go on at the same time."""

    def meet() -> None:
        try:
            os.close(os.open(f"{folder}/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            Path(folder, "second").touch()
            return
        deadline = time.monotonic() + MEET_SECONDS_MAX
        while not Path(folder, "second").exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def share(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == SLOW:
            meet()
        return {"share": 12 // row["n"]}

    def shares(attic: DataFrame) -> DataFrame:
        return dead_letters.apply(dead_letters.decode_json(attic, "n int"), share, "share int", per="row")

    return pipeline(shares)


def start_cluster(folder: str) -> str:
    """A master and two workers in the driver's JVM, as Spark's own tests have them; returns the master's address."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    SparkContext._ensure_initialized()
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    conf = SparkConf()._jconf
    deploy, nothing = jvm.org.apache.spark.deploy, getattr(getattr(jvm.scala, "None$"), "MODULE$")
    started = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)
    master = f"spark://{started._1().address().toString().rpartition('/')[2]}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = master
    for host in HOSTS:
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 512, masters, f"{folder}/work-{host}", nothing, conf, nothing
        )
    return master


def main(http: str, folder: str) -> None:
    from penstock.spark.run.attempt import RestartPolicy, RunSettings
    from penstock.spark.run.fork_server import fork_server
    from penstock.spark.run.java import use_java
    from penstock.spark.run.runner import Runner
    from penstock.spark.run.session import build_session, prepare_environment

    use_java()
    prepare_environment()  # for the executors as well, which are all on this machine
    conf = {
        "spark.driver.host": HOSTS[0],
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        **SPECULATION,
    }
    with TemporaryDirectory() as sockets, fork_server(Path(sockets)):
        spark = build_session("speculation", start_cluster(folder), conf)
        settings = RunSettings(worker=http, checkpoints=f"{folder}/checkpoints", cores=2, available_now=True)
        Runner(spark, [slow_pipeline(folder)], replace(settings, restarts=RestartPolicy(restarts_max=0))).run(200)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
