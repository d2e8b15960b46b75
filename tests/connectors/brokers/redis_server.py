"""A real Redis server for the tests, on a socket in a directory of its own. What it has acknowledged survives."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.support.waiting import SECONDS_MAX, until


def need_redis() -> None:
    """Skips where there is none."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no Redis server on this machine (Debian: apt install redis-server)")


class RedisServer:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self.socket = self.folder / "socket"
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        settings = {"port": "0", "unixsocket": str(self.socket), "dir": str(self.folder), "save": ""}
        settings |= {"appendonly": "yes", "appendfsync": "always"}
        command = ["redis-server", *(part for name, value in settings.items() for part in (f"--{name}", value))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._is_ready)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS_MAX)
        self.socket.unlink(missing_ok=True)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def client(self) -> "Redis":
        return Redis(unix_socket_path=str(self.socket), protocol=2)

    def values(self, stream: str) -> list[bytes]:
        with self.client() as client:
            return [fields[b"value"] for _, fields in client.xrange(stream)]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "redis-server has ended"
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False
