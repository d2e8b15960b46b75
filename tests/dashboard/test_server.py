"""Who may ask the dashboard: its own pages alone, and users who have logged in."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from penstock.client import Message, Source
from penstock.coordinator.records import Sources
from penstock.core.errors import Unauthenticated, Unavailable
from penstock.dashboard.look_pages import offset_at
from penstock.dashboard.server import SameSite
from penstock.dashboard.session import Session, Sessions
from penstock.protocol.api.pipelines import AtTime
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess


async def answer(kind: str, host: str, origin: str = "", names: tuple[str, ...] = ()) -> int | str:
    """The HTTP status; for a WebSocket, the type of the reply."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        else:
            await send({"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    scope = {"type": kind, "method": "GET", "path": "/", "headers": headers}
    await SameSite(app, names)(scope, None, send)  # type: ignore[arg-type]
    return sent[0]["status"] if kind == "http" else sent[0]["type"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:7180", "", 200),
        ("localhost:7180", "http://localhost:7180", 200),
        ("127.0.0.1:7180", "http://evil.example", 403),
        ("127.0.0.1:7180", "http://127.0.0.1:9999", 403),
        ("evil.example:7180", "", 403),
        ("evil.example", "http://evil.example", 403),
        ("", "", 403),
    ],
)
async def test_other_sites_are_refused(host: str, origin: str, status: int) -> None:
    assert await answer("http", host, origin) == status


async def test_a_websocket_of_another_site_is_closed() -> None:
    assert await answer("websocket", "127.0.0.1:7180", "http://127.0.0.1:7180") == "websocket.accept"
    assert await answer("websocket", "127.0.0.1:7180", "http://evil.example") == "websocket.close"


async def test_other_names_can_be_allowed() -> None:
    assert await answer("http", "board.example:7180", "https://board.example:7180", ("board.example",)) == 200


async def test_a_key_logs_in_once(worker: RunningWorker) -> None:
    sessions = Sessions(f"127.0.0.1:{worker.ports['http']}")
    key = sessions.one_time_key()
    number = await sessions.enter_by_key(key)
    session = sessions.of(number)
    assert session is not None
    assert session.may("deploy")
    assert sessions.of("another") is None
    with pytest.raises(Unauthenticated):
        await sessions.enter_by_key(key)
    sessions.leave(number)
    assert sessions.of(number) is None
    with pytest.raises(Unauthenticated, match="this session is over"):
        await session.ask(lambda client: client.status())


async def test_a_key_logs_in_once_also_when_it_is_used_twice_at_the_same_time(worker: RunningWorker) -> None:
    sessions = Sessions(f"127.0.0.1:{worker.ports['http']}")
    key = sessions.one_time_key()
    both = await asyncio.gather(*(sessions.enter_by_key(key) for _ in range(2)), return_exceptions=True)
    assert [type(one) for one in both] == [str, Unauthenticated]


async def test_a_key_is_still_valid_when_the_worker_could_not_be_asked(worker: RunningWorker) -> None:
    sessions = Sessions("127.0.0.1:1")
    key = sessions.one_time_key()
    with pytest.raises(Unavailable):
        await sessions.enter_by_key(key)
    sessions.worker.text = f"127.0.0.1:{worker.ports['http']}"
    assert sessions.of(await sessions.enter_by_key(key)) is not None


@pytest.mark.parametrize("token", ["caf\xe9", "one\r\nX: two", "\x00"])
async def test_a_token_that_no_header_can_carry_is_not_valid(worker: RunningWorker, token: str) -> None:
    with pytest.raises(Unauthenticated, match="the token is not valid"):
        await Sessions(f"127.0.0.1:{worker.ports['http']}").enter(token)


async def test_an_old_key_is_worth_nothing(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(f"127.0.0.1:{worker.ports['http']}")
    key = sessions.one_time_key()
    later = time.monotonic() + 601
    monkeypatch.setattr("penstock.dashboard.session._now", lambda: later)
    with pytest.raises(Unauthenticated):
        await sessions.enter_by_key(key)


@pytest.mark.process
async def test_an_empty_token_is_not_the_dashboard_s_own(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        sessions = Sessions(f"127.0.0.1:{worker.http_port}")
        with pytest.raises(Unauthenticated):
            await sessions.enter("")
        number = await sessions.enter((worker.data / "token").read_text().strip())
        sessions.leave(number)


@pytest.mark.process
def test_on_a_terminal_the_link_of_a_worker_s_dashboard_logs_in_and_ends_with_the_worker(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(_worker(tmp_path), stderr=theirs) as worker, open(ours) as terminal:  # noqa: PTH123
        os.close(theirs)
        try:
            line = next(line for line in terminal if "dashboard: " in line)
            url, _, note = line.partition("dashboard: ")[2].strip().partition(" ")
            assert note == "(this link works once)"
            with urlopen(url) as page:
                assert page.status == 200
                assert not page.url.endswith("/login")
        finally:
            worker.terminate()
        with suppress(OSError):  # that is how a terminal ends: the dashboard, which has the same one, is gone
            terminal.read()
    with pytest.raises(URLError):
        urlopen(url)


@pytest.mark.process
def test_a_log_gets_no_link_that_logs_in(tmp_path: Path) -> None:
    with subprocess.Popen(_worker(tmp_path), stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            line = next(line for line in worker.stderr if line.startswith("dashboard: "))
        finally:
            worker.terminate()
        rest = worker.stderr.read()
    assert re.fullmatch(r"dashboard: http://127.0.0.1:\d+/ \(log in with a token: .*\)\n", line)
    assert "key=" not in rest


def _worker(folder: Path) -> list[str]:
    ports = ["--connector-port", "0", "--segment-port", "0", "--http-port", "0", "--dashboard-port", "0"]
    return [sys.executable, "-m", "penstock", "worker", "--data", str(folder / "data"), *ports]


async def test_a_question_does_not_wait_for_another_of_the_same_user(worker: RunningWorker) -> None:
    answered = threading.Event()
    async with logged_in(Sessions(f"127.0.0.1:{worker.ports['http']}")) as session:

        async def second() -> str:
            try:
                return (await session.ask(lambda client: client.principal())).role
            finally:
                answered.set()

        waits = session.ask(lambda _: answered.wait(SECONDS_MAX))
        assert tuple(await asyncio.gather(waits, second())) == (True, "admin")


async def test_a_worker_that_comes_back_on_another_port_is_found(worker: RunningWorker) -> None:
    here = f"127.0.0.1:{worker.ports['http']}"
    sessions = Sessions("127.0.0.1:1", lambda: here)
    with pytest.raises(Unavailable):
        await sessions.enter("")
    async with logged_in(sessions) as session:
        sessions.worker.text = "127.0.0.1:1"  # it moves once more
        with pytest.raises(Unavailable):
            await session.ask(lambda client: client.status())
        assert (await session.ask(lambda client: client.status())).ports == worker.ports


async def test_a_silent_worker_is_given_up_soon(worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(f"127.0.0.1:{worker.ports['http']}")
    async with logged_in(sessions) as session:
        monkeypatch.setattr("penstock.dashboard.session._ANSWER_SECONDS_MAX", 0.25)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            sessions.worker.text = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(Unavailable, match=r"has not answered for 0\.25 s"):
                await session.ask(lambda client: client.status())


async def test_a_search_for_a_time_may_take_longer_than_other_questions(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(f"127.0.0.1:{worker.ports['connector']}", source="tills")
    source.stream("s", lambda _: (Message(n, b"event", 1_000_000 * n) for n in range(1, 4)))
    await asyncio.to_thread(source.run)
    is_found = threading.Event()
    search = Sources._at_time

    async def slow(self: Sources, name: str, timestamp_us: int) -> int:
        await asyncio.to_thread(is_found.wait, SECONDS_MAX)
        return await search(self, name, timestamp_us)

    monkeypatch.setattr(Sources, "_at_time", slow)
    async with logged_in(Sessions(f"127.0.0.1:{worker.ports['http']}")) as session:
        page = await session.ask(lambda client: client.segments("connector/tills/"))
        (segment,) = [one for one in page.segments if one["length"]]
        name = segment["name"]
        session.close_idle()
        monkeypatch.setattr("penstock.dashboard.session._ANSWER_SECONDS_MAX", 0.25)
        searching = asyncio.ensure_future(offset_at(session, name, "2000-01-01"))
        with pytest.raises(Unavailable, match=r"has not answered for 0\.25 s"):
            await session.ask(lambda client: client.resolve(["tills"], AtTime(0)))
        assert not searching.done()
        is_found.set()
        assert await searching == segment["length"]
        assert await offset_at(session, name, "1970-01-01T00:00:01Z") < segment["length"]


@asynccontextmanager
async def logged_in(sessions: Sessions) -> AsyncIterator[Session]:
    number = await sessions.enter_by_key(sessions.one_time_key())
    session = sessions.of(number)
    assert session is not None
    yield session
    sessions.leave(number)
