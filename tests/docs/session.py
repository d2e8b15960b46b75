"""A reader's terminal: runs a page's steps from top to bottom, as one shell session, and compares what is printed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conftest import QUICK_SPARK
from tests.docs.page import Command, File, Printed, matches, steps
from tests.support.ports import free_port

COMMAND_SECONDS_MAX = 240
"""For one command on a busy machine: it may start Spark."""

_POLL_SECONDS = 0.25
_LOOK_AGAIN_SECONDS = 1.0
_LOG_PREFIX = re.compile(r"^[\d-]+T[\d:.]+Z [A-Z]+ penstock\.run: ", re.MULTILINE)
_PROGRESS = re.compile(r"^waiting(?:: | for ).*\n", re.MULTILINE)
"""What a command says while it waits: whether it has to depends on how busy the machine is."""
_APPLICATION, _SCREEN = "penstock run", ("penstock top", "penstock dashboard")
_KEEP_RUNNING = re.compile(
    r"penstock (run|worker|top|dashboard)\b(?!.*(--available-now|--until-done|--for ))|python \S*sink_\S+\.py"
)
_LOOKS = re.compile(
    r"(cat(?! >)|ls|tail|sqlite3|penstock (status|segment cat|pipeline list|dead-letters list|epoch list))\b"
)
_WORKER_PORTS = {"connector": "7100", "segment": "7101", "http": "7102"}
_SHORTER = {"script/demo": "script/demo --events 1500"}
"""What takes as long as a reader likes to watch."""
_OTHER_PORTS = ("8080", "9000", "7200", "7180")
"""Of connectors and programs on the pages: other tests may run beside this one, so each gets a free one."""


@dataclass(frozen=True, slots=True)
class _Running:
    text: str
    process: subprocess.Popen[bytes]
    log: Path


class Session:
    """One reader in one folder.

    - A command that serves (`penstock run`) has to print what the page shows, and then keeps running.
    - A command that looks (`cat`, `penstock status`) is repeated until it prints that: a reader would wait, too.
    - Any other has to print it, and to end with 0, unless what it prints is an error.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._ports = {port: str(free_port()) for port in _OTHER_PORTS}
        self._environment = os.environ | {
            "PATH": _path(path),
            "COLUMNS": "160",
            "PORT": self._ports["9000"],
        }
        self._environment["SPARK_SUBMIT_OPTS"] = os.environ.get("SPARK_SUBMIT_OPTS", "").replace(QUICK_SPARK, "")
        for name in ("PENSTOCK_WORKER", "PYTEST_ADDOPTS"):  # a page's commands print what they print without these
            self._environment.pop(name, None)
        self._running: list[_Running] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for running in self._running:
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGTERM)
        for running in self._running:
            running.process.wait(COMMAND_SECONDS_MAX)

    def follow(self, page: Path) -> int:
        """Take every step of the page. How many commands were run."""
        count = 0
        for step in steps(page):
            if isinstance(step, File):
                self._save(step)
            elif isinstance(step, Printed):
                self._wait_for(page.name, step)
            else:
                self._run(page.name, step)
                count += 1
        return count

    def _save(self, file: File) -> None:
        path = self._folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_ports(file.text), encoding="utf-8")

    def _run(self, page: str, command: Command) -> None:
        where, text, output = f"{page}:{command.line}", self._with_ports(command.text), command.output
        text = _SHORTER.get(text, text)
        if text.startswith("cd "):
            self._folder = (self._folder / text.removeprefix("cd ")).resolve(strict=True)
        elif _KEEP_RUNNING.search(text):
            self._serve(where, text, output)
        elif _LOOKS.match(text):
            self._look(where, text, output)
        else:
            printed, status = self._once(text)
            assert matches(output, printed), _difference(where, text, output, printed)
            assert status == 0 or "error:" in output, f"{where}: $ {text}\nended with {status}:\n{printed}"

    def _once(self, text: str) -> tuple[str, int]:
        process, log = self._start(text)
        try:
            status = process.wait(COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"$ {text}\ndid not end; it printed:\n{_read(log)}\n{self._logs()}") from None
        return self._printed(log), status

    def _look(self, where: str, text: str, output: str) -> None:
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while not matches(output, printed := self._once(text)[0]):
            assert time.monotonic() < deadline, _difference(where, text, output, printed) + self._logs()
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _serve(self, where: str, text: str, output: str) -> None:
        needs_terminal = text.startswith(_SCREEN)
        process, log = self._start(
            f"script --quiet --return --command {shlex.quote(text)} /dev/null" if needs_terminal else text
        )
        running = _Running(text, process, log)
        self._running.append(running)
        self._await(where, running, output)

    def _wait_for(self, page: str, step: Printed) -> None:
        """It may print other lines before and after, and it may end with what the page shows."""
        application = next(one for one in reversed(self._running) if one.text.startswith(_APPLICATION))
        self._await(f"{page}:{step.line}", application, f"{step.output}…")

    def _await(self, where: str, running: _Running, output: str) -> None:
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        ended = None
        while not matches(output, printed := self._printed(running.log)):
            difference = _difference(where, running.text, output, printed)
            assert ended is None, f"it ended with {ended}; {difference}"
            assert time.monotonic() < deadline, difference + self._logs()
            time.sleep(_POLL_SECONDS)
            ended = running.process.poll()  # then what it has printed last is looked at once more

    def _start(self, text: str) -> tuple[subprocess.Popen[bytes], Path]:
        self._count += 1
        log = self._folder / f".session-{self._count}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, log

    def _with_ports(self, text: str) -> str:
        """What the reader types, with the ports of this session in place of the page's."""
        return _replaced(text, self._known_ports())

    def _printed(self, log: Path) -> str:
        """What a command has printed, with the page's ports in place of this session's. `penstock run` writes to a log
        here: the pages show its lines as a terminal does, without times and levels.
        """
        printed = _PROGRESS.sub("", _LOG_PREFIX.sub("", _read(log)))
        return _replaced(printed, {there: page for page, there in self._known_ports().items()})

    def _known_ports(self) -> dict[str, str]:
        """By the page's port. Those of the worker are known once it runs."""
        with suppress(OSError, ValueError):
            found = json.loads((self._folder / "penstock-data" / "ports.json").read_text())
            return self._ports | {number: str(found[name]) for name, number in _WORKER_PORTS.items()}
        return self._ports

    def _logs(self) -> str:
        """Of what keeps running, for the failure's message."""
        return "".join(f"\n--- $ {running.text}\n{_read(running.log)}" for running in self._running)


def _path(first: Path) -> str:
    """The reader's PATH does not have the programs of this project's own environment, unless that is `first`."""
    own = str(Path(sys.prefix) / "bin")
    return os.pathsep.join([str(first), *(each for each in os.environ["PATH"].split(os.pathsep) if each != own)])


def _replaced(text: str, ports: dict[str, str]) -> str:
    return re.sub(rf"\b(?:{'|'.join(ports)})\b", lambda port: ports[port[0]], text)


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _difference(where: str, text: str, output: str, printed: str) -> str:
    return f"{where}: $ {text}\n--- the page says\n{output}\n--- it printed\n{printed}\n"
