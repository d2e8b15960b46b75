"""What Spark starts in place of `python -m MODULE …`: has the fork server fork that process, and ends when it does.

It is run as `python -I -S fork_client.py MODULE …`, and imports little: it starts as often as those processes do.
"""

import marshal
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType


def fork(connection: socket.socket) -> int:
    """Returns the process id. Raises OSError or EOFError if there is no server."""
    connection.connect(os.environ["PENSTOCK_FORK_SERVER"])
    here = os.getcwd()  # noqa: PTH109  pathlib takes longer to import than all the rest
    environment = {**os.environ, "PENSTOCK_SPARK_JVM": str(os.getppid())}
    request = marshal.dumps((sys.argv[1:], environment, here))
    socket.send_fds(connection, [len(request).to_bytes(4)], [0, 1, 2])
    connection.sendall(request)
    answer = connection.recv(4)
    if not answer:
        raise EOFError
    return int.from_bytes(answer)


def follow(pid: int, connection: socket.socket) -> None:
    """Returns when the process has ended, which keeps the other end of the connection. Spark ends it with SIGTERM."""

    def end(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, end)
    connection.recv(1)


def main() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            pid = fork(connection)
        except (OSError, EOFError):
            python = os.environ["PENSTOCK_SPARK_PYTHON"]
            os.execv(python, [python, "-m", *sys.argv[1:]])  # noqa: S606  that is the point
        follow(pid, connection)


if __name__ == "__main__":
    main()
