"""Every background task of a worker, made to fail: /health, the metrics and the log show it, and it is restarted."""

import ast
import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec
from penstock.client.source import Source
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core import supervisor as supervision
from penstock.core.retry import RetryPolicy
from penstock.core.supervisor import Supervised
from penstock.ingest.settings import ProgramServerSettings
from penstock.pravega.settings import ControllerSettings
from penstock.protocol.api.deployment import BreakerSpec, Deployment, InterceptorSpec
from penstock.segment_server.settings import ServerSettings
from penstock.worker.bucket_shard import BucketMember
from penstock.worker.settings import BucketOptions, WorkerSettings
from penstock.worker.worker import Worker
from tests.application.deployments import deployed, link, pipeline
from tests.application.peers import Sender, Taker
from tests.application.scene import Scene, dialling, listening, scene_of
from tests.support import http
from tests.support.ports import free_port
from tests.support.waiting import until

PAUSES = RetryPolicy(0.05, 0.4, jitter=0.0)
"""Known ones, so that the back-off shows in the log."""
SOON = InterceptorSpec(type="join", config={"delimiter": "\\n", "max_elements": 1000, "max_wait_ms": 20})

OFTEN = CoordinatorSettings(sweep_seconds=0.5)
"""A task that has failed counts as failing until its next turn."""
QUICK = BreakerSpec(probe_after_seconds=0.1, probe_after_seconds_max=0.2)


class Stage:
    """A worker with a source, a pipeline and a sink with a buffering interceptor."""

    def __init__(self, scene: Scene, deployment: Deployment, taker: Taker, port: int) -> None:
        self.scene = scene
        self.deployment = deployment
        self.taker = taker
        self._port = port
        self._sent = 0
        self._program = threading.Thread(target=self._run_program)

    def get(self, path: str) -> str:
        return http.ask(int(self.scene.http.rpartition(":")[2]), "GET", path)[1].decode()

    def send_one(self, then: Callable[[], None] = lambda: None) -> None:
        """An event, as a stream of its own, which ends after `then`."""
        self._sent += 1
        before = self.scene.connector("source").events_in
        with Sender(self._port) as sender:
            sender.send(str(self._sent))
            until(lambda: self.scene.connector("source").events_in > before)
            then()

    def send_while_the_sink_is_down(self) -> None:
        """The event is on its way already."""
        passing = self.scene.stand_ins["p"].works
        passing.clear()

        def miss() -> None:
            self.taker.down()
            passing.set()
            until(lambda: self.scene.connector("sink").outbox_bytes > 0, lambda: self.scene.connector("sink"))
            self.taker.up()

        self.send_one(miss)

    def send_as_a_program(self) -> None:
        """Its acknowledgement waits for a pipeline, which completes all of it."""
        self._program.start()
        with CoordinatorClient(self.scene.http) as client:
            generation = client.start("q", {"in": InputSpec(["program"])}, ["out"], fresh=True).generation
            at = client.initial("q", generation, "in")
            while not self._has_sent(at):
                offset = client.cut("q", generation, "in", at, wait_ms=50).offset
                if offset != at:
                    assert offset.epoch is not None
                    client.merge("q", offset.epoch, [], generation=generation)
                    at = offset

    def _has_sent(self, at: InputOffset) -> bool:
        """Whether all of its event lies before `at`."""
        source = self.scene.application.status().sources.get("program")
        return source is not None and source.messages == 1 and source.retained_bytes == sum(at.segments.values())

    def _run_program(self) -> None:
        source = Source(self.scene.programs, source="program")
        source.stream("stream", lambda after: iter([] if after else [(1, b"event")]))
        source.run()

    def drain(self) -> None:
        self.scene.application.drain()

    def nothing(self) -> None:
        """It runs already."""

    def check_all_arrived(self) -> None:
        if self.scene.application.application().state != "running":
            until(lambda: self.scene.application.application().state == "drained")
            self.scene.application.apply(self.deployment)
        wanted = {str(number) for number in range(1, self._sent + 1)}
        until(lambda: wanted <= {*self.taker.lines}, lambda: self.taker.lines)
        until(lambda: not self._program.is_alive(), lambda: self.scene.application.status().sources["program"])


Cause = Callable[[Stage], None]

TASKS: dict[str, tuple[str, Cause]] = {
    "application/runtime.py: 'drain'": ("drain", Stage.drain),
    "coordinator/service.py: 'retention'": ("retention", Stage.nothing),
    "coordinator/service.py: 'sweep of staged segments'": ("sweep of staged segments", Stage.nothing),
    "coordinator/service.py: 'lag of pipelines'": ("lag of pipelines", Stage.nothing),
    "delivery/breakers/signals.py: f'ended streams of {stream.connector}'": (
        "ended streams of source",
        Stage.send_one,
    ),
    "delivery/outbox/sender.py: self._name": ("outbox of p to sink", Stage.send_while_the_sink_is_down),
    "delivery/outbox/sink.py: self._flush_name": ("interceptors of p to sink", Stage.send_one),
    "delivery/service.py: 'bound sinks'": ("bound sinks", Stage.nothing),
    "delivery/service.py: name": ("delivery of p to sink", Stage.nothing),
    "ingest/completion.py: f'acknowledgements of {self.name}'": (
        "acknowledgements of program",
        Stage.send_as_a_program,
    ),
    "ingest/sessions/program_server.py: 'credits and marks of time'": ("credits and marks of time", Stage.nothing),
    "segment_server/server.py: 'sweep of silent connections'": ("sweep of silent connections", Stage.nothing),
    "worker/worker.py: 'compaction'": ("compaction", Stage.nothing),
    "worker/worker.py: 'free disk'": ("free disk", Stage.nothing),
    "worker/worker.py: 'rates'": ("rates", Stage.nothing),
    "worker/worker.py: 'history'": ("history", Stage.nothing),
}
"""By the place that starts it: its name here, and what makes it run."""

WITH_A_BUCKET = {
    "coordinator/service.py: 'sweep of mirrored checkpoints'": "sweep of mirrored checkpoints",
    "worker/worker.py: 'files beside the journal'": "files beside the journal",
    "worker/worker.py: 'sources of a late lease'": "sources of a late lease",
}
"""Tasks of a worker whose journal is in a bucket."""

WITH_A_CONTROLLER = {"pravega/server.py: 'sweep of transactions'": "sweep of transactions"}
"""Tasks of a worker with a controller for Pravega's clients."""

OF_A_CLUSTER = {
    "worker/host.py: 'membership'",
    "worker/host.py: 'shard processes'",
    "coordinator/remote.py: f'releases to shard {shard}'",
    "coordinator/remote.py: f'{name} follows {source}'",
    "ingest/partitions.py: name",
    "worker/worker.py: 'settings of sources'",
}
"""They need other processes: test_hosts.py, test_partitions.py and tests/coordinator/test_remote.py run them."""

ENDS_THE_WORKER = {"worker/http.py: 'http'"}
"""See tests/worker/test_faults.py."""


def started_by_the_source() -> set[str]:
    """All places that start a supervised task."""
    root, found = Path(inspect.getfile(penstock)).parent, set[str]()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr in ("run", "every") and owner.endswith("supervisor"):
                    found.add(f"{file.relative_to(root)}: {ast.unparse(node.args[0])}")
    return found


def test_every_task_is_tested_here() -> None:
    elsewhere = WITH_A_BUCKET.keys() | WITH_A_CONTROLLER.keys() | OF_A_CLUSTER | ENDS_THE_WORKER
    assert started_by_the_source() == TASKS.keys() | elsewhere


class Faults:
    """Tasks that fail whenever they are started, by name."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.tasks: dict[str, Supervised] = {}
        self.runs: Counter[str] = Counter()

    async def run(self, task: Supervised) -> None:
        self.tasks[task.name] = task
        if task.name in self.failing:
            raise RuntimeError("injected")
        self.runs[task.name] += 1
        await task._work()

    def fail(self, name: str) -> None:
        """From now on; one that runs is ended."""
        self.failing.add(name)
        task = self.tasks.get(name)
        if task is not None and not task.finished.is_set():
            task._loop.call_soon_threadsafe(task._task.cancel)


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    faults = Faults()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "RESTARTS", PAUSES)
        patch.setattr(supervision, "STEADY_SECONDS", 0.5)
        patch.setattr(Supervised, "_run", lambda task: faults.run(task))
        yield faults


@pytest.fixture(scope="module")
def stage(faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    port = free_port()
    with Taker() as taker:
        deployment = deployed(
            listening("source", port),
            dialling("sink", taker.port, per_stream=True, interceptors_out=(SOON,), breaker=QUICK),
            pipeline("p"),
            link("connector/source/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
        )
        with scene_of(tmp_path_factory.mktemp("tasks") / "data", deployment, OFTEN) as scene:
            scene.until_listens("source", "sink")
            yield Stage(scene, deployment, taker, port)


@pytest.mark.parametrize("place", TASKS)
def test_its_failure_is_reported_and_it_is_restarted(
    place: str, stage: Stage, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    name, cause = TASKS[place]
    stage.scene.until_listens("source", "sink")
    until(lambda: '"ok":true' in stage.get("/health"), lambda: stage.get("/health"))
    runs = faults.runs[name]
    faults.fail(name)
    try:
        cause(stage)
        shown = f"background task {name!r} has failed"
        until(lambda: shown in (health := stage.get("/health")) and "injected" in health, lambda: stage.get("/health"))
        line = f"background task {name!r} failed: injected; it is restarted in %s s"
        until(lambda: all(line % pause in caplog.text for pause in (0.1, 0.2, 0.4)))
        metrics = stage.get("/metrics")
        assert f'penstock_task_failing{{task="{name}"}} 1.0' in metrics
        assert f'penstock_task_deaths_total{{task="{name}"}}' in metrics
    finally:
        faults.failing.clear()
    until(lambda: faults.runs[name] > runs)
    until(lambda: '"ok":true' in stage.get("/health"), lambda: stage.get("/health"))
    stage.check_all_arrived()


async def test_failures_of_tasks_that_only_a_bucket_needs_are_reported_and_they_are_restarted(
    faults: Faults, tmp_path: Path
) -> None:
    store = BucketOptions((tmp_path / "bucket").as_uri(), tmp_path / "cache", cache_bytes=1 << 20)
    member = BucketMember(store, tmp_path)
    await check_restarts(faults, Worker(settings_of(tmp_path), shard=member.acquire()), WITH_A_BUCKET.values())
    member.close()


async def test_failures_of_tasks_that_only_a_controller_needs_are_reported_and_they_are_restarted(
    faults: Faults, tmp_path: Path
) -> None:
    settings = replace(settings_of(tmp_path), controller=ControllerSettings(port=0))
    await check_restarts(faults, Worker(settings), WITH_A_CONTROLLER.values())


def settings_of(data: Path) -> WorkerSettings:
    return WorkerSettings(
        data=data, http_port=0, segment=ServerSettings(port=0), programs=ProgramServerSettings(port=0)
    )


async def check_restarts(faults: Faults, worker: Worker, tasks: Iterable[str]) -> None:
    is_ready = asyncio.Event()
    running = asyncio.create_task(worker.run(lambda _: is_ready.set()))
    async with asyncio.timeout(60):
        await is_ready.wait()
        for name in tasks:
            runs = faults.runs[name]
            faults.fail(name)
            while not any(name in problem and "injected" in problem for problem in worker.problems()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            faults.failing.clear()
            while faults.runs[name] == runs or worker.supervisor.problems():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        worker.stop()
        await running
