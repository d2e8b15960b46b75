"""A worker process with an application, and what tests ask of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.client.coordinator.client import ApplicationClient
from penstock.coordinator.settings import CoordinatorSettings
from penstock.protocol.api.deployment import ConnectorSpec, Deployment, InterceptorSpec, ReconnectSpec
from penstock.protocol.api.status import ConnectorStatus
from tests.application.deployments import connector
from tests.application.stand_in import StandIn, standing_in
from tests.support.running_worker import running_worker
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

_S = TypeVar("_S", bound="Scene")

_LINES = InterceptorSpec(type="split", config={"delimiter": "\\n"})
_BATCHES = InterceptorSpec(type="join", config={"delimiter": "\\n", "max_elements": 10})
_QUICKLY = ReconnectSpec(first_seconds=0.05, max_seconds=0.2)


def listening(name: str, port: int, **more: Any) -> ConnectorSpec:
    """A server whose peers send lines."""
    return connector(name, "tcp-server", config={"port": port}, codec="binary", interceptors_in=(_LINES,), **more)


def dialling(name: str, port: int, *, per_stream: bool = False, **more: Any) -> ConnectorSpec:
    """A client that brings lines to a program."""
    config = {"port": port, "connections": "per-stream" if per_stream else "one"}
    given = {"codec": "binary", "interceptors_out": (_BATCHES,), "reconnect": _QUICKLY, **more}
    return connector(name, "tcp-client", config=config, **given)


class Scene:
    """A worker and what was deployed there first. One that is killed and comes back is found on the same ports."""

    def __init__(self, http: str, segments: str, programs: str) -> None:
        self.http = http
        self.segments = segments
        self.programs = programs
        """The addresses of its ports."""
        self.application = ApplicationClient(http)
        self.stand_ins: dict[str, StandIn] = {}
        """By pipeline."""

    def connector(self, name: str) -> ConnectorStatus:
        return {one.name: one for one in self.application.status().connectors}[name]

    def waiting(self) -> dict[str, int]:
        """Streams that may not send, of each connector that has some."""
        found = self.application.status().connectors
        return {one.name: one.blocked_count for one in found if one.blocked_count}

    def until_listens(self, *names: str) -> None:
        until(lambda: all(self.connector(name).state == "connected" for name in names))

    def command(self, *words: str) -> str:
        """What `penstock …` says, which must go well."""
        result = CliRunner().invoke(app, [*words, "--worker", self.http])
        assert result.exit_code == 0, result.output
        return result.output


class KilledScene(Scene):
    """In a process of its own."""

    def __init__(self, worker: WorkerProcess) -> None:
        http, programs = f"127.0.0.1:{worker.http_port}", f"127.0.0.1:{worker.connector_port}"
        super().__init__(http, worker.address, programs)
        self._worker = worker

    def kill(self) -> None:
        """And start it again."""
        self._worker.kill()
        self._worker.start()


@contextmanager
def scene_of(data: Path, deployment: Deployment, coordinator: CoordinatorSettings | None = None) -> Iterator[Scene]:
    """In this process, with everything deployed, and pipelines that need no Spark."""
    with running_worker(data, coordinator=coordinator) as worker:
        http, programs = (f"127.0.0.1:{worker.ports[port]}" for port in ("http", "connector"))
        with _acting(Scene(http, worker.address, programs), deployment) as scene:
            yield scene


@contextmanager
def killed_scene(data: Path, deployment: Deployment, stdout: Path | None = None) -> Iterator[KilledScene]:
    """As `scene_of`, in a process that may be killed. Its standard output is appended to the file."""
    made = WorkerProcess(data)
    made.stdout = stdout
    with made as worker, _acting(KilledScene(worker), deployment) as scene:
        yield scene


@contextmanager
def _acting(scene: _S, deployment: Deployment) -> Iterator[_S]:
    try:
        scene.application.apply(deployment)
        with standing_in(scene.http, scene.segments, deployment) as scene.stand_ins:
            yield scene
    finally:
        scene.application.close()
