"""Who may ask the dashboard: its own pages alone, and users who have logged in."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from penstock.core.errors import Unauthenticated, Unavailable
from penstock.dashboard.server import SameSite
from penstock.dashboard.session import Sessions
from tests.support.running_worker import RunningWorker
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
    sessions.worker = f"127.0.0.1:{worker.ports['http']}"
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
def test_a_worker_s_dashboard_prints_its_link_and_ends_with_it(tmp_path: Path) -> None:
    ports = ["--connector-port", "0", "--segment-port", "0", "--http-port", "0", "--dashboard-port", "0"]
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(tmp_path / "data"), *ports]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            line = next(line for line in worker.stderr if line.startswith("dashboard: "))
            url, _, note = line.removeprefix("dashboard: ").strip().partition(" ")
            assert note == "(this link works once)"
            with urlopen(url) as page:
                assert page.status == 200
        finally:
            worker.terminate()
        worker.stderr.read()  # until the dashboard, which has the same output, has ended
    with pytest.raises(URLError):
        urlopen(url)
