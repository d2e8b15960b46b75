"""Spark's Python daemon, which forks a process for every task that runs at the same time. It first imports what tasks
need: otherwise each of these processes does so, which takes it more than a second, and memory of its own.
"""

import gc
import importlib
import sys

_TASKS = "pyspark.worker"
"""The module that a forked process runs for a task. For other modules there is nothing to prepare."""

NEEDED_BY_TASKS = (
    _TASKS,
    "pandas",
    "penstock.spark.source.arrow",
    "penstock.spark.sink.rows",
    "penstock.windows.stages",
)
"""None of these starts a thread that a forked process would miss."""


def main() -> None:
    from pyspark import daemon

    if sys.argv[1] == _TASKS:
        for name in NEEDED_BY_TASKS:
            importlib.import_module(name)
        gc.freeze()  # a collection in a forked process would copy the pages of all these modules
    daemon.manager()


if __name__ == "__main__":
    main()
