"""The Node client, built once, and a process of it that runs sources for tests."""

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

FOLDER = Path(__file__).parents[2] / "sdk" / "node"
NODE_MIN = 18

INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")


def built() -> Path:
    """The folder of the compiled client. TypeScript is installed the first time; later no network is needed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here: the Node client is not tested")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MIN:
        pytest.skip(f"node is {version} here: the Node client needs {NODE_MIN} or newer")
    with (FOLDER / ".gitignore").open() as lock:  # several processes of a test run build it at the same time
        flock(lock, LOCK_EX)
        if not (FOLDER / "node_modules" / ".installed").exists() or not _is_installed():
            run(*INSTALL)
            (FOLDER / "node_modules" / ".installed").write_text((FOLDER / "package.json").read_text())
        run("node", str(FOLDER / "node_modules" / "typescript" / "bin" / "tsc"))
    return FOLDER / "dist"


def _is_installed() -> bool:
    return (FOLDER / "node_modules" / ".installed").read_text() == (FOLDER / "package.json").read_text()


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class NodeProgram:
    """One process; each source that it runs is a job."""

    def __init__(self, dist: Path) -> None:
        self._dist = dist
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[asyncio.Future[Any], Callable[[str, int], object]]] = {}

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            "node", str(self._dist / "test" / "driver.js"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def send(
        self,
        address: str,
        source: str,
        streams: list[str],
        last: int,
        on_ack: Callable[[str, int], object] = lambda _, __: None,
        tls: dict[str, str] | bool = False,
        retry_seconds: float = 60,
    ) -> dict[str, Any]:
        """The report of a source that sends messages 1 to `last` on each stream. `tls`: options of Node, such as `ca`,
        or True for the system's authorities.
        """
        number = next(self._numbers)
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._jobs[number] = done, on_ack
        job = {"run": number, "address": address, "source": source, "streams": streams, "last": last}
        job |= {"retrySeconds": retry_seconds} | ({"tls": tls} if tls else {})
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        return await done

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = json.loads(line)
            done, on_ack = self._jobs[report["run"]]
            if "id" in report:
                on_ack(report["stream"], report["id"])
            elif not done.done():
                done.set_result(report)
        for done, _ in self._jobs.values():
            if not done.done():
                done.set_exception(RuntimeError("the Node process has ended"))
