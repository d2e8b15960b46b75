"""What peers send ends up in logs. It forges no line, it fills no disk, and what was left out is counted."""

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.embedded_worker import FoundWorker, embedded_worker
from penstock.core import logs
from penstock.core.logs import LineLimit, one_line, quoted
from penstock.delivery.sink_slot import SlotState, SlotStatus
from penstock.protocol.connector import Error, Hello, encode
from tests.core.test_logs import LINE
from tests.support import http
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

FORGED = "2026-03-01T09:30:00.250Z CRITICAL penstock.worker: the disk is on fire"
NASTY = f"x\r\n{FORGED}\n\x1b[2J\x85\u2028{FORGED}"


# Texts.


def test_a_quoted_text_is_one_line_and_short() -> None:
    assert quoted('a "b"\n\x1b[2J') == '"a \\"b\\"\\n\\x1b[2J"'
    assert quoted("y" * 1000, 10) == f'"{"y" * 10}…" (1000 characters)'
    assert len(quoted("y" * 10_000)) < 400
    assert one_line("é and 漢\u2028") == "é and 漢\\u2028"
    assert len(one_line("\0" * 10_000_000)) < 20_000


@pytest.fixture
def stderr_handler(monkeypatch: pytest.MonkeyPatch) -> logging.Handler:
    """That of a worker without --log-file."""
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(logs, "set_log_level", lambda _: None)  # of all tests that follow
    logs.set_up_logging()
    assert logging.lastResort is not None
    return logging.lastResort


def failure(text: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.ERROR, "", 0, "failed: %s", (text,), (ValueError, ValueError(text), None))


def test_a_long_traceback_is_cut(capsys: pytest.CaptureFixture[str], stderr_handler: logging.Handler) -> None:
    stderr_handler.handle(failure("z" * 1_000_000))
    assert len(capsys.readouterr().err) < 25_000


def test_stderr_gets_a_few_lines_of_a_flood(
    capsys: pytest.CaptureFixture[str], stderr_handler: logging.Handler
) -> None:
    for number in range(1000):
        stderr_handler.handle(logging.LogRecord("a", logging.ERROR, "", 0, "failed: %s", (number,), None))
    assert 0 < len(capsys.readouterr().err.splitlines()) < 100


def test_a_traceback_forges_no_line(capsys: pytest.CaptureFixture[str], stderr_handler: logging.Handler) -> None:
    stderr_handler.handle(failure(NASTY))
    first, *others = capsys.readouterr().err.splitlines()
    assert re.match(LINE, first)
    assert all(line.startswith("    ") for line in others)


def test_what_a_sink_program_reports_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    SlotStatus().failed(SlotState.WAITING, NASTY, "sink x")
    (record,) = caplog.records
    assert record.getMessage().isprintable()


# Who did what.


@pytest.mark.slow
def test_every_action_that_manages_a_worker_is_logged(tmp_path: Path) -> None:
    """At every level, with who did what, and how it ended. The level can be changed while the worker runs."""
    file = tmp_path / "worker.log"
    with WorkerProcess(tmp_path / "data", "--log-file", str(file), "--log-format", "json") as worker:

        def ask(path: str, **body: object) -> int:
            return http.ask(worker.http_port, "POST", path, body)[0]

        def logged() -> list[tuple[str, str]]:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            return [(line["level"], line["message"]) for line in lines if line["logger"] == "penstock.audit"]

        assert ask("/log-level", level="error") == 200
        assert ask("/log-level", level="loud") == 400
        assert ask("/pause", connector="none") == 400
        for _ in range(30):
            assert ask("/log-level", level="debug") == 200
        rewind = {"sink": NASTY, "accept_gap": True}
        assert ask("/pipelines/none/rewind", **rewind) == 400
        assert ask("/pipelines/none/park", epoch=0) == 400
        assert ask("/pipelines/none/bind", sinks={"s": {"port": "out", "url": "postgresql://me:secret@db/t"}}) == 400
        assert ask("/pipelines/none/bury", at=[["s", 7], ["s", 9]], reason="why") == 400
        done = ("INFO", '"owner" from 127.0.0.1: POST /log-level level="debug": done')
        until(lambda: len(logged()) == 37)
        assert logged().count(done) == 30, "none is left out"
        refused = [text.partition(": refused: ")[0] for level, text in logged() if level == "WARNING"]
        assert refused == [
            '"owner" from 127.0.0.1: POST /log-level',
            '"owner" from 127.0.0.1: POST /pause connector="none"',
            f'"owner" from 127.0.0.1: POST /pipelines/none/rewind sink={quoted(NASTY)} accept_gap',
            '"owner" from 127.0.0.1: POST /pipelines/none/park epoch=0',
            '"owner" from 127.0.0.1: POST /pipelines/none/bind sinks="s"',
            '"owner" from 127.0.0.1: POST /pipelines/none/bury at="s@7, s@9" reason="why"',
        ]
        assert "secret" not in file.read_text()


# Limits.


def test_lines_of_one_kind_are_limited_and_counted() -> None:
    now = [0.0]
    limit = LineLimit(lambda: now[0])

    def line(template: str, value: object) -> logging.LogRecord:
        return logging.LogRecord("penstock", logging.WARNING, "", 0, template, (value,), None)

    admitted = [limit.admits(line("%s reports", number)) for number in range(1000)]
    assert sum(admitted) == logs.LINES_PER_WINDOW
    assert limit.admits(line("%s is new", 1))
    assert limit.left_out() == []
    now[0] += logs.WINDOW_SECONDS
    assert limit.admits(line("%s reports", 1))
    (told,) = limit.left_out()
    assert told.getMessage() == f'{1000 - logs.LINES_PER_WINDOW} more lines like "%s reports" were left out within 10 s'
    assert limit.left_out() == []


def test_texts_that_are_no_templates_are_limited_together() -> None:
    limit = LineLimit(lambda: 0.0)
    lines = (logging.LogRecord("a", logging.WARNING, "", 0, f"text {number}", None, None) for number in range(10_000))
    assert sum(map(limit.admits, lines)) <= logs.KINDS_MAX + logs.LINES_PER_WINDOW
    assert len(limit._windows) <= logs.KINDS_MAX + 1


# Files.


def test_a_log_rotates_with_the_output_of_its_process(tmp_path: Path) -> None:
    program = """
import logging, os, sys
from pathlib import Path
from penstock.core import logs
logs.FILE_BYTES_MAX, logs.LINES_PER_WINDOW = 10_000, 10**9
logs.set_up_logging(Path(sys.argv[1]))
for number in range(1000):
    logging.getLogger("x").warning("line %d", number)
os.write(2, b"to stderr\\n")
os.write(1, b"to stdout\\n")
"""
    path = tmp_path / "worker.log"
    with path.open("ab") as file:
        subprocess.run([sys.executable, "-c", program, path], stdout=file, stderr=file, check=True)
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["worker.log", "worker.log.1", "worker.log.2", "worker.log.3"]
    assert all(one.stat().st_size < 11_000 for one in files)
    assert path.read_text().endswith("line 999\nto stderr\nto stdout\n")


# Attacks on a worker.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker") / "data"


@pytest.fixture(scope="module")
def worker(data: Path) -> Iterator[FoundWorker]:
    with embedded_worker(data, ("--chapter-size=1MiB", "--reserve=2MiB")) as found:
        yield found


def say(port: int, *messages: bytes) -> None:
    """Connect, send, and wait until the worker closes the connection."""
    with socket.create_connection(("127.0.0.1", port), 60) as peer:
        try:
            peer.sendall(b"".join(messages))
            while peer.recv(65536):
                pass
        except OSError:  # it was fast
            pass


def lines_of(data: Path) -> list[str]:
    return (data / "worker.log").read_text(errors="strict").split("\n")


@pytest.mark.process
def test_peers_forge_no_line_on_any_port(worker: FoundWorker, data: Path) -> None:
    before = len(lines_of(data)) - 1  # starts that found a port taken have left lines without a time
    hello = encode(Hello("0.0.1", b"", NASTY, "s"))
    say(worker.ports["connector"], hello, encode(Error(NASTY + "z" * 60_000)))
    say(worker.ports["connector"], encode(Hello("0.0.1", b"", NASTY, NASTY)))
    say(worker.ports["segment"], b"\xff" * 4 + NASTY.encode() * 10)
    say(worker.ports["http"], f"GET /{NASTY} HTTP/1.1\r\n\r\n".encode())
    say(worker.ports["http"], b"GET /pipelines/x%0d%0aforged/start HTTP/1.1\r\nConnection: close\r\n\r\n")
    until(lambda: any("reports" in line for line in lines_of(data)), lambda: lines_of(data))
    lines = lines_of(data)[before:]
    assert not [line for line in lines if line and not re.match(LINE, line) and not line.startswith("    ")]
    assert not [line for line in lines if line.startswith(FORGED)]
    assert max(map(len, lines)) < 5000


@pytest.mark.process
def test_a_flood_of_errors_is_a_few_lines(worker: FoundWorker, data: Path) -> None:
    before = len(lines_of(data))
    count = 600
    for number in range(count):
        say(worker.ports["connector"], encode(Hello("0.0.1", b"", f"p{number}", "s")), encode(Error("no")))

    def shown() -> list[str]:
        say(worker.ports["segment"], b"\xff" * 100)  # any line brings the count of those that were left out
        return [line for line in lines_of(data)[before:] if "were left out" in line]

    until(shown, lambda: lines_of(data)[before:])
    assert len(lines_of(data)) - before < count / 2
