"""One measurement of latency through an application: JSON events in by HTTP, those that a `where` lets through out by
WebSocket.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect

from bench.flows import Stage
from bench.harness import BenchmarkFailed
from bench.latency_flow import Timing
from bench.load import ANSWER_SECONDS_MAX, Worker
from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.application.driver import carry_by_value
from penstock.application.functions import pipelines_of
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import Deployment
from penstock.spark.run.attempt import RunSettings
from penstock.spark.run.runner import Runner
from tests.support.ports import free_port

APPLICATION = """\
connector:
- id: requests-{name}
  type: http-server
  config: {{port: {http}}}
  codec: json
  schema: level STRING, due_ns BIGINT, text STRING
- id: errors-{name}
  type: ws-server
  config: {{port: {ws}, broadcast: true}}
  codec: json
pipeline:
- id: {name}
  spark: only_errors.py:only_errors
binding:
  id: web
  links:
    connector/requests-{name}/out: pipeline/{name}/in
    pipeline/{name}/out: connector/errors-{name}/in
"""

FUNCTION = """\
def only_errors(events):
    return events.where("level = 'error'")
"""

LEVELS = ("error", "info")
"""Of the events, in turn: every other one comes out."""

TEXT = "x" * 40

UP_SECONDS_MAX = 120.0
"""From the deployment to the first event that comes out; the first query of a session takes some 10 s."""

LOOK_SECONDS = 0.05
"""Between two tries while the application is coming up: a worker starts connectors after it has accepted a deployment,
and their requests wait up to 30 s for Spark before they are refused.
"""

COME_SECONDS_MAX = 60.0
"""For the last events, after they were sent."""


def event(number: int, stamp: int) -> bytes:
    return json.dumps({"level": LEVELS[number % len(LEVELS)], "due_ns": stamp, "text": TEXT}).encode()


@dataclass(frozen=True, slots=True)
class WebJob:
    """A generator's job: `rate` requests in a second, each with one event, over as many connections as it takes: a
    request is answered when it is stored. Returns the milliseconds from when each event was due to be sent until it
    came out, for those that were due after `warm_s`.
    """

    http: int
    ws: int
    rate: int
    warm_s: float
    measure_s: float

    def __call__(self) -> list[float]:
        return asyncio.run(self._run())

    @property
    def seconds_max(self) -> float:
        """What it takes at most."""
        return UP_SECONDS_MAX + self.warm_s + self.measure_s + COME_SECONDS_MAX

    async def _run(self) -> list[float]:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(began + UP_SECONDS_MAX):
            await asyncio.gather(listening(self.http), listening(self.ws))
        async with connect(f"ws://127.0.0.1:{self.ws}") as outlet, Requests(self.http) as requests:
            async with asyncio.timeout_at(began + UP_SECONDS_MAX):
                while not await requests.accepted(event(0, 0)):  # noqa: ASYNC110  another process decides
                    await asyncio.sleep(LOOK_SECONDS)
                await outlet.recv()
            return await self._measure(requests, outlet)

    async def _measure(self, requests: Requests, outlet: ClientConnection) -> list[float]:
        count, began_ns = int((self.warm_s + self.measure_s) * self.rate), time.monotonic_ns()
        stamps = [began_ns + number * 1_000_000_000 // self.rate for number in range(count)]
        sending = asyncio.create_task(self._send(requests, stamps))
        came: dict[int, float] = {}
        async with asyncio.timeout(self.warm_s + self.measure_s + COME_SECONDS_MAX):
            while len(came) < len(stamps[:: len(LEVELS)]):
                stamp = json.loads(await outlet.recv())["due_ns"]
                came[stamp] = (time.monotonic_ns() - stamp) / 1e6
            await sending
        if sorted(came) != stamps[:: len(LEVELS)]:
            raise BenchmarkFailed("what came out by WebSocket is not what was to pass")
        warm_ns = began_ns + int(self.warm_s * 1e9)
        return [latency for stamp, latency in came.items() if stamp >= warm_ns]

    async def _send(self, requests: Requests, stamps: list[int]) -> None:
        for number, stamp in enumerate(stamps):
            await asyncio.sleep(max(0.0, (stamp - time.monotonic_ns()) / 1e9))
            requests.post_soon(event(number, stamp))
        await requests.answered()


async def listening(port: int) -> None:
    """Returns when a server accepts connections there."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            writer.close()
            return


class Requests:
    """POSTs of JSON, each over a connection that waits for no other answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._pending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Requests:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._pending:
            task.cancel()
        for _, writer in self._idle:
            writer.close()

    def post_soon(self, body: bytes) -> None:
        task = asyncio.create_task(self.post(body))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def answered(self) -> None:
        await asyncio.gather(*self._pending)

    async def post(self, body: bytes) -> None:
        if not await self.accepted(body):
            raise BenchmarkFailed("the worker has refused a request, although its pipelines were ready")

    async def accepted(self, body: bytes) -> bool:
        """False if the worker takes nothing now, because its pipelines are not ready: then nothing is stored."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if answer.startswith(b"HTTP/1.1 202"):
            self._idle.append((reader, writer))
            return True
        writer.close()
        if not answer.startswith(b"HTTP/1.1 503"):
            raise BenchmarkFailed(f"the worker answered a request with {answer!r:.200}")
        return False


@dataclass(frozen=True, slots=True)
class WebTrial:
    """One run of the application under a name of its own."""

    stage: Stage
    program: Worker[list[float]]
    name: str
    rate: int
    warm_s: float
    measure_s: float

    def run(self) -> Timing:
        """Raises BenchmarkFailed unless all events that pass, and no others, come out once."""
        http, ws = free_port(), free_port()
        with self._deployed(http, ws) as deployment, self._running(deployment):
            job = WebJob(http, ws, self.rate, self.warm_s, self.measure_s)
            self.program.begin(job)
            return Timing.of(self.program.finish(job.seconds_max + ANSWER_SECONDS_MAX))

    @contextmanager
    def _deployed(self, http: int, ws: int) -> Iterator[Deployment]:
        folder = self.stage.directory / self.name
        folder.mkdir()
        (folder / "app.yaml").write_text(APPLICATION.format(name=self.name, http=http, ws=ws))
        (folder / "only_errors.py").write_text(FUNCTION)
        deployment = load(folder / "app.yaml", KnownTypes(), os.environ).deployment
        with ApplicationClient(self.stage.worker) as client, CoordinatorClient(self.stage.worker) as coordinator:
            client.apply(deployment)
            try:
                yield deployment
            finally:
                client.apply(Deployment())
                coordinator.drop(self.name, outputs=True)

    @contextmanager
    def _running(self, deployment: Deployment) -> Iterator[None]:
        pipelines = pipelines_of(deployment)
        for pipeline in pipelines:
            carry_by_value(pipeline)
        checkpoints = str(self.stage.directory / "checkpoints")
        settings = RunSettings(worker=self.stage.worker, checkpoints=checkpoints, cores=self.stage.cores)
        runner = Runner(self.stage.spark, pipelines, settings)
        thread = threading.Thread(target=runner.run, name="runner")
        thread.start()
        try:
            yield
        finally:
            runner.stop()
            thread.join()
