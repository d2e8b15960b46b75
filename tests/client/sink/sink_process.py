"""A sink program that can be killed and started again, at the same address."""

import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX


class SinkProcess:
    """`start` it with arguments, of which the one that is `ADDRESS` becomes where it listens."""

    def __init__(self, *command: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        assert self._process is None
        command = [self.address if part == "ADDRESS" else part for part in self._command]
        self._process = subprocess.Popen([sys.executable, *command, *more], stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS_MAX)
            self._process = None

    def interrupt(self) -> int:
        """Ctrl-C, when it listens: one that only starts dies of it. Returns how it ended."""
        assert self._process is not None
        self._wait_until_it_listens()
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(SECONDS_MAX)
        self._process = None
        return code

    def join(self) -> int:
        """Wait for an end that comes by itself."""
        assert self._process is not None
        code = self._process.wait(SECONDS_MAX)
        self._process = None
        return code

    def _wait_until_it_listens(self) -> None:
        host, _, port = self.address.rpartition(":")
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            with suppress(ConnectionRefusedError):
                socket.create_connection((host, int(port))).close()
                return
            time.sleep(0.01)
        raise AssertionError(f"nobody listens on {self.address}")
