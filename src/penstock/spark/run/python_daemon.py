"""Spark's Python daemon, which forks a process for every task that runs at the same time. It first imports what tasks
need: otherwise each of these processes does so, which takes it more than a second, and memory of its own.
"""

import gc
import importlib
import sys

from pyspark import daemon

_NEEDED = {
    "pyspark.worker": ("pandas", "penstock.spark.source.arrow", "penstock.spark.sink.rows", "penstock.windows.stages"),
    "pyspark.sql.worker.plan_data_source_read": ("penstock.spark.source.stream",),
    "pyspark.sql.worker.write_into_data_source": ("penstock.spark.sink.writer",),
}
"""By the module that a forked process runs."""


def _import(worker_module: str) -> None:
    """None of these starts a thread that a fork would have to take along."""
    importlib.import_module(worker_module)
    for name in _NEEDED.get(worker_module, ()):
        importlib.import_module(name)


if __name__ == "__main__":
    _import(sys.argv[1])
    gc.freeze()  # a collection in a forked process would copy the pages of all these modules
    daemon.manager()
