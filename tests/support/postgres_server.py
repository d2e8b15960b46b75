"""A real PostgreSQL server for the tests: on a socket of its own, in a directory of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.waiting import SECONDS_MAX

FOLDERS = (*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), "/usr/pgsql/bin")


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(FOLDERS))


def is_installed() -> bool:
    return find("postgres") is not None and find("initdb") is not None


def need_postgres() -> None:
    """Skips where there is no server."""
    if not is_installed():
        pytest.skip("there is no PostgreSQL server on this machine (Debian: apt install postgresql)")


class PostgresServer:
    """PostgreSQL refuses to run as root: then it runs as `nobody`."""

    def __init__(self, wal_level: str = "logical") -> None:
        self._wal_level = wal_level
        self.socket_folder = tempfile.mkdtemp(prefix="penstock-postgres-")
        self._data = str(Path(self.socket_folder) / "data")
        self._as: dict[str, Any] = {"cwd": self.socket_folder}
        if os.getuid() == 0:
            shutil.chown(self.socket_folder, "nobody")
            self._as |= {"user": "nobody", "extra_groups": []}
        self._log = Path(self.socket_folder, "log")
        initdb = find("initdb")
        assert initdb is not None
        arguments = ["-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run([initdb, *arguments], check=True, stdout=subprocess.DEVNULL, **self._as)
        self.start()

    def start(self) -> None:
        postgres = find("postgres")
        assert postgres is not None
        settings = ["listen_addresses=", "fsync=off", "shared_buffers=16MB", "max_connections=20"]
        settings += [f"wal_level={self._wal_level}", "max_replication_slots=40"]
        arguments = ["-D", self._data, "-k", self.socket_folder, *(part for one in settings for part in ("-c", one))]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([postgres, *arguments], stdout=log, stderr=log, **self._as)
        deadline = time.monotonic() + SECONDS_MAX
        while not self._is_ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Without a checkpoint; it recovers at the next start."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(SECONDS_MAX)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self.kill()
        shutil.rmtree(self.socket_folder)

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(host=self.socket_folder, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True
