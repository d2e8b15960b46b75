"""Each link of the chain is stopped, slow, refusing or gone, and the status names this link, and no other, within 15 s.

All situations are staged at once at one worker, most of them with a pipeline of their own.
Those that need Spark's JVM are in `tests/spark/test_situations.py`.
"""

import http.server
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.status import view
from penstock.client import Message, Source
from penstock.client.coordinator import BucketNumbers, CoordinatorClient, InputOffset, InputSpec, SinkSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.client.sink import DataFile, Sink
from penstock.core.errors import DiskFull
from penstock.ingest.settings import SourceSettings
from penstock.protocol.api.pipelines import QueryFailure, QueryReport
from penstock.protocol.api.status import Blockage, WorkerStatus
from penstock.store.files import RealFiles
from penstock.testing.seaweedfs import SeaweedFS
from tests.application.deployments import connector, deployed
from tests.client.sink.running_sink import RunningSink
from tests.delivery.merging import Merging
from tests.spark.sending import send
from tests.support.bucket_worker import BucketWorker
from tests.support.fair_clock import FairClock
from tests.support.open_stream import open_stream
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.staged_program import StagedProgram, staged_program
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("situations")]  # staged once, which takes 15 s

NAMED_SECONDS_MAX = 15.0
"""From the moment when a situation is staged, on a machine that has time for it."""

QUOTA_BYTES = 20_000
LOOK_SECONDS = 0.5
BEAT_SECONDS = 2.0


class Refusing(DataFile):
    """A full disk: the sink votes no."""

    def sync(self) -> None:
        raise OSError(28, "No space left on device")


class Slow(DataFile):
    def __init__(self, path: Path, may_continue: threading.Event) -> None:
        super().__init__(path)
        self._may_continue = may_continue

    def sync(self) -> None:
        self._may_continue.wait(120)


class Unavailable(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@dataclass
class Beat:
    """A driver that lives, whose query asks for epochs, unless it only `beats`."""

    name: str
    generation: int
    at: InputOffset
    asks: bool = True
    beats: bool = True
    merges: bool = True
    query: QueryReport | None = None
    failure: QueryFailure | None = None


class Stage:
    """A worker, and what the situations need of it. Each driver that lives is a thread: on a busy machine one thread
    for all of them would come to the last one too late.
    """

    def __init__(self, worker: RunningWorker, folder: Path, stack: ExitStack) -> None:
        self.worker, self.folder, self.stack = worker, folder, stack
        self.http = f"127.0.0.1:{worker.ports['http']}"
        self.client = stack.enter_context(CoordinatorClient(self.http, 30))
        self.segments = stack.enter_context(SegmentClient(worker.address))
        self.may_continue = threading.Event()
        self._drivers: list[threading.Thread] = []
        self._over = threading.Event()
        stack.callback(self._end)

    def _end(self) -> None:
        self.may_continue.set()
        self._over.set()
        for one in self._drivers:
            one.join(60)

    def _live(self, beat: Beat) -> None:
        with CoordinatorClient(self.http, 30) as client:
            while not self._over.wait(BEAT_SECONDS):
                self._turn(client, beat)

    def _turn(self, client: CoordinatorClient, one: Beat) -> None:
        if one.beats:
            failed = one.failure is not None
            client.heartbeat(one.name, one.generation, failed=failed, failure=one.failure, query=one.query)
        if not one.asks:
            return
        cut = client.cut(one.name, one.generation, "in", one.at).offset
        if cut != one.at and one.merges:
            assert cut.epoch is not None
            client.merge(one.name, cut.epoch, [], generation=one.generation)
            one.at = cut

    def status(self) -> WorkerStatus:
        return self.client.status()

    # What situations are staged with.

    def live(self, beat: Beat) -> Beat:
        self._turn(self.client, beat)
        driver = threading.Thread(target=self._live, args=(beat,), name=f"driver of {beat.name}")
        driver.start()
        self._drivers.append(driver)
        return beat

    def pipeline(self, name: str, source: str, **more: Any) -> Beat:
        """A pipeline that reads a source, and whose driver lives."""
        started = self.client.start(name, {"in": InputSpec([source])}, ["out"])
        return self.live(Beat(name, started.generation, self.client.initial(name, started.generation, "in"), **more))

    def delivering(self, name: str, sinks: dict[str, str], before: Callable[[], None] | None = None) -> None:
        """A pipeline whose driver lives, with an epoch for these sinks. `before` it, when all of them are open."""
        merging = Merging(self.client, self.segments, name)
        self.client.bind(name, {key: SinkSpec("out", url) for key, url in sinks.items()})
        if before is not None:
            until(lambda: all(one.state == "READY" for one in self.client.sinks() if one.pipeline == name))
            before()
        merging.epoch([b'{"key": "k", "value": 1}'])
        self.live(Beat(name, merging.generation, merging._at))

    def send(self, source: str, *payloads: bytes) -> None:
        send(f"127.0.0.1:{self.worker.ports['connector']}", source, "north", payloads)

    def sending(self, source: str, *payloads: bytes) -> None:
        """A program that goes on trying until the end."""
        program = Source(f"127.0.0.1:{self.worker.ports['connector']}", source=source)
        messages = [Message(number, payload) for number, payload in enumerate(payloads, 1)]
        program.stream("north", lambda after: iter(messages[after or 0 :]))
        thread = threading.Thread(target=program.run, name=f"program of {source}")
        thread.start()
        self.stack.callback(thread.join, 60)
        self.stack.callback(program.stop)

    def program(self, *arguments: str) -> StagedProgram:
        return self.stack.enter_context(staged_program(*arguments))

    def sink(self, target: Any, name: str) -> str:
        """The URL of a sink program in a thread."""
        running = RunningSink(Sink("127.0.0.1:0", target, state=self.folder / f"{name}.state"))
        self.stack.callback(running.stop)
        self.stack.callback(self.may_continue.set)
        return f"connector://{running.address}"

    def sink_program(self, name: str) -> tuple[str, StagedProgram]:
        (self.folder / name).mkdir()
        program = self.program("sink", str(self.folder / name))
        return f"connector://{program.said}", program


# The situations.


def nobody_is_connected(stage: Stage) -> None:
    stage.send("unconnected-source", b"one")
    stage.pipeline("unconnected", "unconnected-source")


def a_program_holds_its_credits(stage: Stage) -> None:
    stream = stage.stack.enter_context(open_stream(stage.worker.ports["connector"], "holding-source", "north"))
    stream.send(1, 5000)
    stage.pipeline("holding", "holding-source")


def a_source_program_is_stopped(stage: Stage) -> None:
    program = stage.program("source", str(stage.worker.ports["connector"]), "halted-source")
    stage.pipeline("halted", "halted-source")
    program.stop()


def a_source_is_at_its_quota(stage: Stage) -> None:
    """Its pipeline is the cause: it is stopped, and keeps everything."""
    beat = stage.pipeline("keeping", "full-source", asks=False, beats=False)
    stage.client.heartbeat("keeping", beat.generation, stopped=True)
    stage.sending("full-source", *([bytes(1000)] * 100))


def a_source_is_paused(stage: Stage) -> None:
    stage.send("paused-source", b"one")
    with ApplicationClient(stage.http, 30) as client:
        client.pause("paused-source")


def a_pipeline_is_not_started(stage: Stage) -> None:
    stage.send("waiting-source", b"one")
    beat = stage.pipeline("not-started", "waiting-source", asks=False, beats=False)
    stage.client.heartbeat("not-started", beat.generation, stopped=True)


def a_driver_is_killed(stage: Stage) -> None:
    stage.send("killed-source", b"one")
    stage.program("driver", stage.http, "killed", "killed-source", "asks").kill()


def a_driver_is_stopped(stage: Stage) -> None:
    stage.send("frozen-source", b"one")
    stage.program("driver", stage.http, "frozen", "frozen-source", "asks").stop()


def a_driver_is_stopped_and_its_query_continues(stage: Stage) -> None:
    """Spark's JVM needs the driver's process to restart the query, and for nothing else."""
    program = stage.program("driver", stage.http, "orphan", "segment:orphan-input")
    program.stop()
    at = stage.client.initial("orphan", int(program.said), "in")
    stage.live(Beat("orphan", int(program.said), at, beats=False))


def a_query_fails(stage: Stage) -> None:
    failure = QueryFailure("127.0.0.1:1 cannot be reached", 3, 1000.0)
    stage.pipeline("failing", "failing-source", asks=False, failure=failure)


def a_query_does_not_ask(stage: Stage) -> None:
    beat = stage.pipeline("unasked", "unasked-source")
    beat.asks = False
    stage.sending("unasked-source", b"one")


def an_epoch_takes_long(stage: Stage) -> None:
    stage.send("long-source", b"one")
    report = QueryReport(jvm_silent_seconds=0.5, doing="Processing new data", tasks_done=1, tasks=2)
    stage.pipeline("long", "long-source", merges=False, query=report)


def the_jvm_does_not_answer(stage: Stage) -> None:
    """As its driver reports it."""
    stage.send("jvm-source", b"one")
    beat = stage.pipeline("deaf", "jvm-source", query=QueryReport(jvm_silent_seconds=12))
    beat.asks = False


def a_sink_is_stopped_and_another_has_voted(stage: Stage) -> None:
    url, program = stage.sink_program("stopped-sink")
    quick = stage.sink(DataFile(stage.folder / "quick"), "quick")
    stage.delivering("voted", {"quick": quick, "stopped": url}, before=program.stop)


def a_sink_refuses_connections(stage: Stage) -> None:
    files = f"file:{stage.folder}/files-of-absent"
    stage.delivering("absent", {"files": files, "gone": f"connector://127.0.0.1:{free_port()}"})


def a_sink_votes_no(stage: Stage) -> None:
    files = f"file:{stage.folder}/files-of-no"
    stage.delivering("no", {"files": files, "full": stage.sink(Refusing(stage.folder / "full"), "full")})


def a_sink_is_slow(stage: Stage) -> None:
    files = f"file:{stage.folder}/files-of-slow"
    slow = stage.sink(Slow(stage.folder / "slow", stage.may_continue), "slow")
    stage.delivering("slow", {"files": files, "late": slow})


def a_database_is_locked(stage: Stage) -> None:
    path = stage.folder / "locked.db"
    connection = stage.stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
    connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, value TEXT)")
    connection.execute("BEGIN EXCLUSIVE")
    files = f"file:{stage.folder}/files-of-locked"
    stage.delivering("locked", {"files": files, "table": f"sqlite:{path}?table=rows&format=json"})


def a_web_service_is_unavailable(stage: Stage) -> None:
    """It does not vote: it gets what the others have agreed on."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unavailable)
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    stage.stack.callback(server.server_close)
    stage.stack.callback(server.shutdown)
    files = f"file:{stage.folder}/files-of-web"
    stage.delivering("web", {"files": files, "service": f"http://127.0.0.1:{server.server_port}/in"})


def a_connector_is_disconnected(stage: Stage) -> None:
    """A deployed one, which does not vote."""
    with ApplicationClient(stage.http, 30) as client:
        client.apply(deployed(connector("dials", "tcp-client", config={"port": free_port()}, codec="binary")))
    stage.delivering("dialling", {"files": f"file:{stage.folder}/files-of-dialling", "dials": "dials"})


def an_epoch_is_parked(stage: Stage) -> None:
    """Nothing is blocked by a sink that refused it before."""
    full = stage.sink(Refusing(stage.folder / "parked"), "parked")
    stage.delivering("parked", {"refuses": full})
    until(lambda: any(one.state == "REFUSED" for one in stage.client.sinks() if one.pipeline == "parked"))
    stage.client.park("parked", 0)


def a_stream_holds_the_watermark(stage: Stage) -> None:
    stream = stage.stack.enter_context(open_stream(stage.worker.ports["connector"], "windows-source", "till"))
    stream.send(1, 5000)
    beat = stage.pipeline("windows", "windows-source")
    numbers = dict.fromkeys(("bucket", "open_windows", "keys", "state_bytes", "late_kept", "late_dropped"), 0)
    buckets = [BucketNumbers(**numbers, waiting=2, first_end=10_000_000, next_time=10_000_000)]
    stage.client.report_windows("windows", "w", 2, buckets, generation=beat.generation)


@dataclass(frozen=True)
class Situation:
    stage: Callable[[Stage], None]
    link: str
    """Which one must be named; "" if none."""
    says: str
    """A pattern for the sentence."""
    pipeline: str = ""
    """That is blocked, or waits."""
    is_blocking: bool = True

    def found(self, status: WorkerStatus) -> list[Blockage]:
        """What the status has about it."""
        if self.pipeline:
            return [one for one in status.blockages if one.pipeline == self.pipeline]
        return [one for one in status.blockages if one.link == self.link]

    def is_named(self, status: WorkerStatus) -> bool:
        return any(one.link == self.link for one in self.found(status))


SITUATIONS = [
    Situation(nobody_is_connected, "source unconnected-source", "no program is connected", "unconnected", False),
    Situation(
        a_program_holds_its_credits,
        "source holding-source",
        r"its program is connected, may send [\d,]+ messages, and has sent nothing for \d+ s",
        "holding",
        False,
    ),
    Situation(a_source_program_is_stopped, "source halted-source", r"has sent nothing for \d+ s", "halted", False),
    Situation(a_source_is_at_its_quota, "source full-source", r"is blocked by keeping \(STOPPED\): it is at its quota"),
    Situation(a_source_is_paused, "source paused-source", r"penstock resume paused-source"),
    Situation(a_pipeline_is_not_started, "pipeline not-started", r"is STOPPED: .* Start it with", "not-started"),
    Situation(a_driver_is_killed, "its driver", r"blocked by its driver: no heartbeat for \d+ s", "killed"),
    Situation(a_driver_is_stopped, "its driver", r"blocked by its driver: no heartbeat for \d+ s", "frozen"),
    Situation(
        a_driver_is_stopped_and_its_query_continues,
        "its driver",
        r"its query keeps running without it",
        "orphan",
        False,
    ),
    Situation(
        a_query_fails, "pipeline failing", r"failed 3 times in a row and restarts in \d+ s: 127.0.0.1:1", "failing"
    ),
    Situation(a_query_does_not_ask, "Spark", r"has not asked for an epoch for \d+ s", "unasked"),
    Situation(an_epoch_takes_long, "epoch 0", r"epoch 0 has been running in Spark for \d+ s \(1 of 2 tasks", "long"),
    Situation(the_jvm_does_not_answer, "Spark's JVM", r"no answer for \d+ s", "deaf"),
    Situation(a_sink_is_stopped_and_another_has_voted, "sink stopped", r"no answer for \d+ s", "voted"),
    Situation(a_sink_refuses_connections, "sink gone", r"cannot be reached: .*refused", "absent"),
    Situation(a_sink_votes_no, "sink full", r"it votes no: .*penstock epoch park no EPOCH --sink full", "no"),
    Situation(a_sink_is_slow, "sink late", r"no answer for \d+ s", "slow"),
    Situation(a_database_is_locked, "sink table", r"no answer for \d+ s|locked", "locked"),
    Situation(a_web_service_is_unavailable, "sink service", r"503", "web"),
    Situation(a_connector_is_disconnected, "sink dials", r"connector dials: .* cannot be reached", "dialling"),
    Situation(an_epoch_is_parked, "", "", "parked"),
    Situation(a_stream_holds_the_watermark, "the watermark", r"2 windows open, waiting for", "windows", False),
]


@dataclass
class Sighting:
    status: WorkerStatus
    seconds: float
    """From the moment when it was staged."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Situation, Sighting]]:
    """The first status that names each situation's link, or the first one that is too late."""
    folder = tmp_path_factory.mktemp("situations")
    settings = SourceSettings(quota_bytes=QUOTA_BYTES)
    with running_worker(folder / "data", connector=settings) as worker, ExitStack() as stack:
        stage = Stage(worker, folder, stack)
        clock, staged_at = FairClock(), {}
        for one in SITUATIONS:
            one.stage(stage)
            staged_at[one] = clock.seconds()
        found: dict[Situation, Sighting] = {}
        while len(found) < len(SITUATIONS):
            status = stage.status()
            now = clock.seconds()
            for one in SITUATIONS:
                seconds = now - staged_at[one]
                if one not in found and ((one.link and one.is_named(status)) or seconds > NAMED_SECONDS_MAX):
                    found[one] = Sighting(status, seconds)
            time.sleep(LOOK_SECONDS)
        yield found


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.stage.__name__)
def test_the_link_that_blocks_is_named_and_no_other(situation: Situation, seen: dict[Situation, Sighting]) -> None:
    sighting = seen[situation]
    found = situation.found(sighting.status)
    if not situation.link:
        assert not [one for one in found if one.is_blocking]
        return
    assert [one.link for one in found] == [situation.link], f"after {sighting.seconds:.0f} s: {found}"
    assert found[0].is_blocking == situation.is_blocking
    assert re.search(situation.says, str(found[0])), str(found[0])
    assert " ".join(str(found[0]).split()) in printed(sighting.status)
    print(f"{situation.stage.__name__.replace('_', ' ')} | {found[0]}")


def printed(status: WorkerStatus) -> str:
    """By `penstock status --all`."""
    console = Console(width=400, color_system=None)
    with console.capture() as captured:
        console.print(view("127.0.0.1:7102", status, [], width=400, is_all=True))
    return " ".join(captured.get().split())


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFiles, "free_bytes", lambda _: 0)
    with running_worker(tmp_path / "data") as worker, CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        segments = SegmentClient(worker.address, retry_seconds=0)
        with segments, suppress(DiskFull), segments.appender("s", create=True) as appender:
            for _ in range(100):
                appender.append(bytes(100_000))
                appender.flush()
        (blockage,) = client.status().blockages
        assert blockage.link == "the disk"
        assert str(blockage).startswith("blocked by the disk: it is full, so sources get no credits")
        print(f"the disk is full | {blockage}")


def test_an_object_store_that_is_away_is_named(tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS) -> None:
    with BucketWorker(tmp_path, s3_url) as worker, CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
        assert f"journal in {s3_url} · lease held" in printed(client.status())
        seaweedfs.kill()
        try:
            until(lambda: client.status().blockages)
            status = client.status()
        finally:
            seaweedfs.start()
        (blockage,) = status.blockages
        assert blockage.link == "the object store"
        assert str(blockage).startswith(f"blocked by the object store: {s3_url}: no connection: ")
        assert str(blockage) in printed(status)
        until(lambda: not client.status().blockages)
        print(f"the object store is away | {blockage}")
