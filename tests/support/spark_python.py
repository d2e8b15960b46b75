#!/usr/bin/env -S python3 -S -E
"""Python for the tests' Spark session. Spark starts a process for each load of each query, which takes half a second
of CPU time for imports: here it is a fork of a process that has them. Other processes start as always.

It imports little and no packages, since it starts as often. `spark_nursery` is the other end.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

FORKED = "pyspark.sql.streaming."
"""Modules of processes that live as long as a query; those of tasks have their own daemon."""

NURSERY = "PENSTOCK_TESTS_SPARK_NURSERY"
"""The address of the process that is forked."""

PYTHON = "PENSTOCK_TESTS_SPARK_PYTHON"
"""What `penstock run` gives to Spark."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] != "-m" or not arguments[1].startswith(FORKED):
        os.execv(os.environ[PYTHON], [os.environ[PYTHON], *arguments])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as call:
        call.connect(os.environ[NURSERY])
        here = os.getcwd()  # noqa: PTH109  (pathlib takes longer to import than all the rest)
        asked = {"arguments": arguments[1:], "cwd": here, "environment": dict(os.environ)}
        socket.send_fds(call, [json.dumps(asked).encode()], [0, 1, 2])
        pid = int(call.recv(20))

        def end(number: int, _: FrameType | None) -> None:
            os.kill(pid, number)

        signal.signal(signal.SIGTERM, end)
        call.recv(1)  # returns when the process has ended, which holds the other end


if __name__ == "__main__":
    main()
