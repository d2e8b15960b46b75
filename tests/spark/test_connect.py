"""Pipelines in a session of Spark Connect, on a server of the installed PySpark: as in any other session."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run import session
from penstock.spark.run.fork_server import fork_server
from penstock.spark.run.java import NEEDED_TO_CONNECT, check_installed, use_java
from tests.docs.page import File, steps
from tests.spark import connect_client
from tests.spark.feeding import Feed
from tests.spark.sending import outputs, send
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("connect")]

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"

START_SECONDS_MAX = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    try:
        check_installed((*NEEDED_TO_CONNECT, "pyspark"))
        use_java()
    except RequestError as error:
        pytest.skip(str(error))
    import pyspark

    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    printed = subprocess.run([sys.executable, "-m", session.__name__, "local[2]"], stdout=subprocess.PIPE, check=True)
    (folder / "penstock.conf").write_bytes(printed.stdout)
    own = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    conf = [text for key, value in own.items() for text in ("--conf", f"{key}={value}")]
    script, log = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh", folder / "server.log"
    session.prepare_environment("local[2]")
    with TemporaryDirectory() as sockets, fork_server(Path(sockets)), log.open("wb") as out:
        command = [str(script), "--wait", "--properties-file", "penstock.conf", *conf]
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, process_group=0)
        try:
            until(lambda: is_listening(port) or process.poll() is not None, log.read_text, START_SECONDS_MAX)
            assert process.poll() is None, log.read_text()
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def clients() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


Run = Callable[[Callable[[connect_client.Place], Any]], Any]


@pytest.fixture
def run(server: str, clients: ProcessPoolExecutor, worker: RunningWorker, tmp_path: Path) -> Run:
    """Has a client run a pipeline on everything that is stored; returns how many epochs that took."""
    place = connect_client.Place(server, f"127.0.0.1:{worker.ports['http']}", tmp_path)
    return lambda pipeline: clients.submit(pipeline, place).result()


def store(worker: RunningWorker, source: str, *payloads: bytes) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", source, "s", payloads)


def payloads(worker: RunningWorker, pipeline: str, port: str = "out") -> list[bytes]:
    return [event.payload for event in outputs(worker.address, pipeline, port)]


def test_events_are_copied_once_over_epochs_and_restarts(worker: RunningWorker, run: Run) -> None:
    lines = [b"%d" % number for number in range(8)]
    times = [*enumerate(lines, 1)]
    with Feed(worker, "lines", ["s"]) as feed:
        feed.say("s", *times[:2])
        feed.say("s", *times[2:5])
        assert run(connect_client.copy) == 2
        assert payloads(worker, "copy") == lines[:5]
        feed.say("s", *times[5:])
        assert run(connect_client.copy) == 1, "from its checkpoint on"
    assert payloads(worker, "copy") == lines


def test_the_program_on_the_page_runs(server: str, worker: RunningWorker, tmp_path: Path) -> None:
    (program,) = (one.text for one in steps(PAGE) if isinstance(one, File) and one.name == "copy_lines.py")
    for written, here in {
        "sc://127.0.0.1:15002": server,
        "127.0.0.1:7102": f"127.0.0.1:{worker.ports['http']}",
        "/var/lib/copy": str(tmp_path / "copy"),
    }.items():
        assert written in program
        program = program.replace(written, here)
    store(worker, "lines", b"a", b"b")
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            until(lambda: payloads(worker, "copy") == [b"a", b"b"] or process.poll() is not None)
            assert process.poll() is None
        finally:
            process.kill()


def test_events_are_decoded_and_dead_letters_leave(worker: RunningWorker, run: Run) -> None:
    store(worker, "numbers", b'{"n": 1}', b"not json", b'{"n": 3}', b'{"n": 400}')
    run(connect_client.decode)
    assert [json.loads(one) for one in payloads(worker, "decode")] == [{"n": 2}, {"n": 6}]
    (letter,) = outputs(worker.address, "decode", "err")
    assert letter.payload == b"not json"
    assert letter.metadata["source"] == "numbers"
    assert letter.metadata["reason"]


def rows(worker: RunningWorker, pipeline: str) -> list[Any]:
    return [json.loads(one) for one in payloads(worker, pipeline)]


MINUTE_MS = 60_000


def test_windows_close_and_a_late_event_leaves(worker: RunningWorker, run: Run) -> None:
    with Feed(worker, "clicks", ["a", "b"]) as feed:
        for minute in (0, 1, 2):
            for stream in ("a", "b"):
                feed.say(stream, (minute * MINUTE_MS + 1, b"%d" % minute))
        run(connect_client.count)
        feed.say("a", (5, b"late"))
        feed.say_all({stream: [(4 * MINUTE_MS, b"4")] for stream in ("a", "b")})
        run(connect_client.count)
    found = sorted(
        (one["start"] // (1000 * MINUTE_MS), one["stream"], one["n"])
        for one in map(json.loads, payloads(worker, "count"))
    )
    assert found == [(minute, stream, 1) for minute in (0, 1, 2) for stream in ("a", "b")]
    assert payloads(worker, "count", "late") == [b"late"]


def test_windows_on_an_input_itself_are_computed_by_its_readers(worker: RunningWorker, run: Run) -> None:
    with Feed(worker, "clicks", ["a"]) as feed:
        feed.say("a", (1, b"0"), (2, b"0"), (MINUTE_MS + 1, b"1"))
        run(connect_client.count_fused)
        feed.say("a", (5, b"late"), (2 * MINUTE_MS, b"2"))
        run(connect_client.count_fused)
    found = [(one["start"] // (1000 * MINUTE_MS), one["n"], one["largest"]) for one in rows(worker, "count")]
    assert found == [(0, 2, 3), (1, 1, 4)]
    assert payloads(worker, "count", "late") == [b"late"]


def test_a_mistake_in_what_readers_would_compute_is_found_before_the_query_starts(run: Run) -> None:
    assert run(connect_client.mistaken).startswith("where= or select= cannot be computed: [UNRESOLVED_COLUMN")


def test_the_events_of_a_key_are_in_order_and_a_late_one_leaves(worker: RunningWorker, run: Run) -> None:
    with Feed(worker, "clicks", ["a", "b"]) as feed:
        feed.say_all({"a": [(3, b"a3"), (1, b"a1"), (2, b"a2")], "b": [(9, b"b9"), (5, b"b5")]})
        run(connect_client.in_order)
        feed.say_all({"a": [(2, b"late"), (20, b"a20")], "b": [(30, b"b30")]})
        run(connect_client.in_order)
    found = payloads(worker, "order")
    assert [one for one in found if one.startswith(b"a")] == [b"a1", b"a2", b"a3"]
    assert [one for one in found if one.startswith(b"b")] == [b"b5", b"b9"]
    assert payloads(worker, "order", "late") == [b"late"]


def test_duplicates_are_dropped_by_the_pipelines_watermark_and_a_late_event_leaves(
    worker: RunningWorker, run: Run
) -> None:
    with Feed(worker, "clicks", ["a", "b"]) as feed:
        feed.say_all({"a": [(1000, b"x"), (1001, b"y")], "b": [(1002, b"x")]})
        run(connect_client.distinct)
        feed.say_all({"a": [(5000, b"z")], "b": [(5001, b"z")]})
        run(connect_client.distinct)
        feed.say("b", (7, b"late"))
        run(connect_client.distinct)
    assert sorted(payloads(worker, "distinct")) == [b"x", b"y", b"z"]
    assert payloads(worker, "distinct", "late") == [b"late"]


def test_rows_for_which_a_function_raises_are_dead_letters(worker: RunningWorker, run: Run) -> None:
    store(worker, "numbers", b"3", b"0", b"six", b"4")
    run(connect_client.share)
    assert [json.loads(one)["share"] for one in payloads(worker, "share")] == [4, 3]
    assert payloads(worker, "share", "err") == [b"0", b"six"]


def test_a_failed_query_is_explained_at_the_users_line(worker: RunningWorker, run: Run) -> None:
    store(worker, "lines", b"not a number")
    found = run(connect_client.fail)
    assert "ValueError: invalid literal for int() with base 10: 'not a number'" in found


def test_the_frame_of_a_users_own_writer_is_known(run: Run) -> None:
    assert run(connect_client.written)


def test_what_needs_a_driver_in_the_same_process_says_so(run: Run) -> None:
    assert "this is a session of Spark Connect" in run(connect_client.display)


def test_without_the_extra_the_error_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.spark import connect

    for name in ("grpc", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RequestError, match="sessions of Spark Connect need grpc and zstandard") as caught:
        connect("sc://127.0.0.1:1")
    assert caught.value.hint == "pip install 'penstock-streams[connect]'"
