"""Whoever is refused for lack of access is counted, by port, and logged with its address and the reason, never with
what it has presented.
"""

import logging
import re
from functools import partial
from pathlib import Path

import pytest

from penstock.access.file import AccessFile, StoredGrant
from penstock.access.refusals import Port, Refusals
from penstock.client.segments import SegmentClient
from penstock.client.source import Refused, Source
from penstock.core.errors import Forbidden, Unauthenticated
from penstock.core.logs import LINES_PER_WINDOW, LineLimit
from tests.support.http import ask
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

COOKIE, GUESSED = b"Dragons-Love-Tacos", "a-token-that-somebody-has-guessed"


def counts(worker: RunningWorker) -> dict[str, int]:
    _, page = ask(worker.ports["http"], "GET", "/metrics")
    found = re.findall(r'^penstock_refused_requests_total\{port="(\w+)"\} ([\d.]+)$', page.decode(), re.MULTILINE)
    return {port: int(float(count)) for port, count in found}


def is_answered(worker: RunningWorker, token: str, status: int) -> bool:
    return ask(worker.ports["http"], "GET", "/status", token=token)[0] == status


def send(worker: RunningWorker, name: str, cookie: str) -> None:
    source = Source(f"127.0.0.1:{worker.ports['connector']}", source=name, cookie=cookie.encode(), retry_seconds=30)
    source.stream("s", lambda _: iter([]))
    source.run()


def test_refusals_are_counted_and_logged_on_every_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AccessFile(tmp_path)
    token = access.add(StoredGrant("tenant", "write", ["demo"]))
    with running_worker(tmp_path, access=AccessFile(tmp_path), cookie=COOKIE) as worker:
        http = worker.ports["http"]
        assert counts(worker) == {"http": 0, "segment": 0, "connector": 0}

        assert ask(http, "GET", "/status", token=GUESSED)[0] == 401
        assert ask(http, "GET", "/application", token=token)[0] == 403
        assert ask(http, "GET", "/status", token=token, headers={"Origin": "https://evil.example"})[0] == 403
        assert ask(http, "GET", "/status", token=token)[0] == 200
        with SegmentClient(worker.address, token=GUESSED) as client, pytest.raises(Unauthenticated):
            client.info("demo/x")
        with SegmentClient(worker.address, token=token) as client:
            for _ in range(3):
                with pytest.raises(Forbidden):
                    client.create("other/x")
        for name, cookie in (("demo", GUESSED), ("other", token)):
            with pytest.raises(Refused):
                send(worker, name, cookie)
        until(lambda: counts(worker) == {"http": 3, "segment": 4, "connector": 2})

    lines = [record.getMessage() for record in caplog.records]
    assert '127.0.0.1 was refused: "the token is not valid, or was revoked"' in lines
    assert sum("other/x" in line for line in lines) == 1, "the first of a connection"
    assert any("the cookie is wrong" in line and "127.0.0.1" in line for line in lines)
    assert any("needs write on source 'other'" in line for line in lines)
    for secret in (GUESSED, token, COOKIE.decode()):
        assert secret not in caplog.text


def test_a_client_does_not_choose_the_address_that_is_logged_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "192.0.2.7: POST /pipelines/orders/drop: done"
    with running_worker(tmp_path, access=AccessFile(tmp_path)) as worker, caplog.at_level(logging.INFO):
        for token in (GUESSED, AccessFile(tmp_path).add(StoredGrant("deployer", "deploy"))):
            expected = 401 if token == GUESSED else 200
            until(partial(is_answered, worker, token, expected))
            ask(worker.ports["http"], "POST", "/pipelines/x/drop", {}, {"X-Forwarded-For": forged}, token)
    lines = [record.getMessage() for record in caplog.records]
    assert '127.0.0.1 was refused: "the token is not valid, or was revoked"' in lines
    assert any(line.startswith('"deployer" from 127.0.0.1: POST /pipelines/x/drop: ') for line in lines)
    assert "192.0.2.7" not in caplog.text


def test_a_flood_on_one_port_leaves_room_for_the_lines_of_another(caplog: pytest.LogCaptureFixture) -> None:
    refusals, limit = Refusals(), LineLimit(lambda: 0.0)
    for number in range(1000):
        refusals.add(Port.HTTP, f"192.0.2.{number % 256}", Unauthenticated("no token was sent"))
    refusals.add(Port.SEGMENT, "192.0.2.1", Forbidden("evil\n2026-03-01 CRITICAL forged"))
    shown = [record for record in caplog.records if record.levelno == logging.WARNING and limit.admits(record)]
    assert len(shown) == LINES_PER_WINDOW + 1
    assert shown[-1].getMessage() == '192.0.2.1 was refused: "evil\\n2026-03-01 CRITICAL forged"'
    assert dict(refusals.counts()) == {Port.HTTP: 1000, Port.SEGMENT: 1, Port.CONNECTOR: 0}
