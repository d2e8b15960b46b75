"""A real MariaDB server for the tests: on a port of its own, in a directory of its own."""

import getpass
import os
import shutil
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path

import pymysql
import pytest

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX

FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin")


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(FOLDERS))


def need_mariadb() -> None:
    """Skips where there is no server."""
    if find("mariadbd") is None or find("mariadb-install-db") is None:
        pytest.skip("there is no MariaDB server on this machine (Debian: apt install mariadb-server)")


class MariaDbServer:
    """With its defaults, and without waiting for the disk: it is killed, not the machine."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
        self._log = self._folder / "log"
        self._numbers = count(1)
        self._port = free_port()
        install = find("mariadb-install-db")
        assert install is not None
        more = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--user={getpass.getuser()}"]
        with self._log.open("ab") as log:
            subprocess.run([install, "--no-defaults", *self._data, *more], check=True, stdout=log, stderr=log)
        self.start()

    @property
    def _data(self) -> list[str]:
        return [f"--datadir={self._folder / 'data'}", "--innodb-flush-log-at-trx-commit=2"]

    def start(self) -> None:
        program = find("mariadbd")
        assert program is not None
        more = ["--bind-address=127.0.0.1", f"--port={self._port}", f"--user={getpass.getuser()}"]
        more += [
            f"--socket={self._folder / 'socket'}",
            f"--pid-file={self._folder / 'pid'}",
            "--innodb-buffer-pool-size=16M",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program, "--no-defaults", *self._data, *more], stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS_MAX
        while not self._is_ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def new_database(self) -> str:
        """The URL of an empty one, for SQLAlchemy."""
        name = f"test_{next(self._numbers)}"
        with pymysql.connect(host="127.0.0.1", port=self._port, user="root") as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return f"mysql+pymysql://root@127.0.0.1:{self._port}/{name}"

    def kill(self) -> None:
        """It recovers at the next start."""
        self._process.kill()
        self._process.wait(SECONDS_MAX)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def _is_ready(self) -> bool:
        try:
            pymysql.connect(host="127.0.0.1", port=self._port, user="root").close()
        except pymysql.OperationalError:
            return False
        return True
