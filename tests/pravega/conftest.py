"""A worker with a controller, and Pravega's own client as a program."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any
from uuid import uuid4

import grpc
import pytest

from penstock.pravega.messages import CLASSES, METHODS, SERVICE
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess


@dataclass
class Controller:
    """Of a worker on the same machine: what the client does not do itself."""

    port: int
    token: str
    _channels: list[Any] = field(default_factory=list)

    def call(self, method: str, **fields: Any) -> Any:
        request, reply = (CLASSES[name] for name in METHODS[method])
        if not self._channels:
            self._channels.append(grpc.insecure_channel(f"127.0.0.1:{self.port}"))
        ask = self._channels[0].unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        metadata = [("authorization", f"Bearer {self.token}")]
        return ask(request(**fields), metadata=metadata, timeout=SECONDS_MAX, wait_for_ready=True)

    def scale(self, scope: str, *ranges: tuple[float, float]) -> Any:
        """Replace all segments of the stream."""
        stream = {"scope": scope, "stream": "s"}
        active = [one.segmentId.segmentId for one in self.call("getCurrentSegments", **stream).segmentRanges]
        new = [{"start": low, "end": high} for low, high in ranges]
        return self.call("scale", streamInfo=stream, sealedSegments=active, newKeyRanges=new)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


@dataclass
class Client:
    """Runs a scenario of `client.py`."""

    uri: str
    token: str
    programs: list[subprocess.Popen[str]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    def start(self, scenario: str, *arguments: object) -> subprocess.Popen[str]:
        own = {"method": "Basic", "username": "tests", "password": self.token}
        environment = {**os.environ, **{f"pravega_client_auth_{key}": value for key, value in own.items()}, **self.more}
        program = [sys.executable, str(Path(__file__).with_name("client.py")), self.uri, scenario]
        process = subprocess.Popen(
            [*program, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(process)
        return process

    def run(self, scenario: str, *arguments: object) -> Any:
        return result(self.start(scenario, *arguments))

    def new_scope(self, segments: int) -> str:
        """With a stream `s`."""
        scope = f"sc{uuid4().hex[:8]}"
        assert self.run("create", scope, segments)
        return scope

    def close(self) -> None:
        for process in self.programs:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Return when the program has printed it."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"the client ended without {line!r}: exit status {process.wait()}")


def result(process: subprocess.Popen[str]) -> Any:
    """Of a program that ends; what it has printed may have been read in part by `wait_for`."""
    assert process.stdout is not None
    limit = Timer(SECONDS_MAX * 4, process.kill)
    limit.start()
    output = process.stdout.read()
    process.wait()
    limit.cancel()
    assert output, f"the client printed nothing: exit status {process.returncode}"
    return json.loads(output.splitlines()[-1])


def tell(process: subprocess.Popen[str]) -> None:
    """A program that waits for a line to continue."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@dataclass
class Running:
    worker: WorkerProcess
    client: Client
    controller: Controller


StartWorker = Callable[..., Running]


def start(data: Path, *options: str) -> Running:
    """Skips the test where the client cannot be installed."""
    pytest.importorskip("pravega_client", reason="Pravega's client has wheels for Python 3.11 on Linux alone")
    port = free_port()
    worker = WorkerProcess(data, "--controller-port", str(port), *options)
    worker.start()
    token = (data / "token").read_text().strip()
    return Running(worker, Client(f"tcp://127.0.0.1:{port}", token), Controller(port, token))


def stop(running: Running) -> None:
    running.client.close()
    running.controller.close()
    running.worker.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One worker for tests that use scopes of their own."""
    running = start(tmp_path_factory.mktemp("pravega"))
    yield running
    stop(running)


@pytest.fixture
def client(shared: Running) -> Client:
    return shared.client


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A worker that may be killed."""
    own = start(tmp_path / "data")
    yield own
    stop(own)
