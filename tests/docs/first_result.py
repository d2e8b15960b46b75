"""How long it takes from `git clone` to the first result of one's own application, step by step.

    python -m tests.docs.first_result [--keep FOLDER]

Takes the commands of the README, in a clone and an environment of its own; packages come from where pip gets them.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 900
READING = b'{"room": "attic", "celsius": 31.5}\n'


class Newcomer:
    """Someone with an empty folder, and a Python."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._folder, self._python, self._port = folder, python, free_port()
        self._house = folder / "house"
        self._path = f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"
        self._total = 0.0

    def take(self, name: str, step: Callable[[], None]) -> None:
        began, cpu = time.monotonic(), _cpu_seconds()
        step()
        seconds = time.monotonic() - began
        self._total += seconds
        print(f"{name:<58} {seconds:6.1f} s {_cpu_seconds() - cpu:8.1f} s CPU", flush=True)

    def go(self) -> None:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("git clone", lambda: self._run(f"git clone --quiet {ROOT} {self._folder / 'penstock'}")),
            ("python -m venv", lambda: self._run(f"{self._python} -m venv {self._folder / 'venv'}")),
            ("pip install '.[spark]'", lambda: self._run("cd penstock && pip install --quiet '.[spark]'")),
            ("penstock init, penstock check", self._init),
        ]
        for name, step in steps:
            self.take(name, step)
        with (self._folder / "log").open("wb") as log:
            command = ["penstock", "run", "app.yaml"]
            running = subprocess.Popen(command, cwd=self._house, stdout=log, stderr=log, env=self._environment)
            try:
                self.take("penstock run, until it is ready", lambda: self._wait("ready: "))
                self.take("a reading is sent, and its result is in the sink's file", self._result)
            finally:
                running.terminate()
                running.wait(_SECONDS_MAX)
        print(
            f"{'together, and with the processes of penstock run':<58} {self._total:6.1f} s {_cpu_seconds():8.1f} s CPU"
        )

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"PATH": self._path, "PORT": str(self._port)}

    def _run(self, command: str, folder: Path | None = None) -> None:
        subprocess.run(["bash", "-c", command], cwd=folder or self._folder, env=self._environment, check=True)

    def _init(self) -> None:
        self._run("penstock init house > /dev/null && cd house && penstock check app.yaml > /dev/null")

    def _wait(self, text: str) -> None:
        deadline = time.monotonic() + _SECONDS_MAX
        while text not in (log := (self._folder / "log").read_text()):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)

    def _result(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(READING)
        deadline = time.monotonic() + _SECONDS_MAX
        while not (rows := "".join(part.read_text() for part in self._house.glob("warm/part-*"))):
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.05)
        assert json.loads(rows) == json.loads(READING)


def _cpu_seconds() -> float:
    """Of commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave everything there")
    keep = parser.parse_args().keep
    if keep is not None:
        keep.mkdir(parents=True)
        Newcomer(keep.resolve()).go()
        return
    with TemporaryDirectory() as folder:
        Newcomer(Path(folder)).go()


if __name__ == "__main__":
    main()
