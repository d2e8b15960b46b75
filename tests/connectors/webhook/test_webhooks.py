"""`webhook-server` and `webhook-client`, with real peers: httpx, a real server, and each other."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.connectors.api import Lost
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.connectors.webhook.server import Deliveries, WebhookServer
from penstock.connectors.webhook.signatures import Signature, sign, verify
from tests.connectors.http_serving import Says, serving
from tests.connectors.real_host import LINES, Hosted, hosting
from tests.support.waiting import eventually

SECRET = base64.b64encode(b"between you and me").decode()
STYLES = ("github", "stripe", "standard")


def options(style: str) -> dict[str, Any]:
    return {"style": style, "secrets": [SECRET]}


def signed(style: str, body: bytes, delivery: str = "d-1", seconds: float = 0.0) -> dict[str, str]:
    return sign(Signature.model_validate(options(style)), delivery, body, time.time() + seconds)


@asynccontextmanager
async def receiving(folder: Path, style: str = "standard", **config: Any) -> AsyncIterator[tuple[Hosted, str]]:
    more = {key: config.pop(key) for key in [*config] if key in ("interceptors_in", "quota_bytes", "ack")}
    given = {"port": 0, "signature": options(style), **config}
    async with hosting(folder, "webhook-server", given, **more) as hosted:
        await hosted.connected()
        assert isinstance(hosted.connector, WebhookServer)
        yield hosted, f"http://{hosted.connector.addresses[0]}/"


@pytest.mark.parametrize("style", STYLES)
async def test_a_signed_delivery_is_stored_before_it_is_answered(tmp_path: Path, style: str) -> None:
    async with receiving(tmp_path, style) as (hosted, url), httpx.AsyncClient() as client:
        hosted.hold()  # a pipeline that has completed nothing: the answer does not wait for it
        answer = await client.post(url, content=b'{"a": 1}', headers=signed(style, b'{"a": 1}'))
        assert answer.status_code == 202
        (event,) = hosted.events()
        assert event.value == b'{"a": 1}'
        assert event.metadata.get("delivery") == ("d-1" if style != "stripe" else None)


@pytest.mark.parametrize("style", STYLES)
async def test_nothing_is_stored_or_opened_for_a_request_that_is_not_verified(tmp_path: Path, style: str) -> None:
    async with receiving(tmp_path, style) as (hosted, url), httpx.AsyncClient() as client:
        for headers in ({}, signed(style, b"another body")):
            answer = await client.post(url, content=b"{}", headers=headers)
            assert answer.status_code == 401
        if style != "github":
            old = await client.post(url, content=b"{}", headers=signed(style, b"{}", seconds=-3600))
            assert (old.status_code, "timestamp" in old.text) == (401, True)
        assert hosted.host.counters.streams == 0
        assert hosted.values() == []
        assert hosted.host.counts["unverified_requests"] >= 2


async def test_a_repeated_delivery_is_stored_once_and_answered_200(tmp_path: Path) -> None:
    async with receiving(tmp_path) as (hosted, url), httpx.AsyncClient() as client:
        answers = [await client.post(url, content=b"{}", headers=signed("standard", b"{}")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 200, 200]
        other = await client.post(url, content=b"{}", headers=signed("standard", b"{}", "d-2"))
        assert other.status_code == 202
        assert hosted.values() == [b"{}", b"{}"]
        assert hosted.host.counts["repeated_deliveries"] == 2


async def test_copies_that_come_at_the_same_time_are_stored_once(tmp_path: Path) -> None:
    async with receiving(tmp_path, delivery_header="X-Id") as (hosted, url), httpx.AsyncClient() as client:
        headers = signed("standard", b"{}") | {"x-id": "same"}
        answers = await asyncio.gather(*[client.post(url, content=b"{}", headers=headers) for _ in range(5)])
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 202]
        assert hosted.values() == [b"{}"]


async def test_a_copy_of_a_delivery_that_could_not_be_stored_is_stored() -> None:
    deliveries, stored = Deliveries(2), list[str]()
    begun = asyncio.Event()

    async def fails() -> None:
        begun.set()
        await asyncio.sleep(0)
        raise Lost("no room")

    async def stores() -> None:
        stored.append("copy")

    first = asyncio.create_task(deliveries.once("a", fails))
    await begun.wait()
    assert await deliveries.once("a", stores)
    with pytest.raises(Lost):
        await first
    assert not await deliveries.once("a", stores)
    assert stored == ["copy"]


async def test_only_the_latest_ids_are_remembered() -> None:
    async def stores() -> None: ...

    deliveries = Deliveries(2)
    assert [await deliveries.once(one, stores) for one in "abcab"] == [True, True, True, True, True]
    assert [await deliveries.once(one, stores) for one in "ab"] == [False, False]
    assert [await deliveries.once("", stores) for _ in range(2)] == [True, True], "without an id nothing is compared"


async def test_at_the_quota_a_delivery_is_answered_503_and_its_repetition_is_accepted_later(tmp_path: Path) -> None:
    async with receiving(tmp_path, quota_bytes=2000, admission="50ms") as (hosted, url), httpx.AsyncClient() as client:
        hosted.hold()
        body = b"x" * 1000
        headers = [signed("standard", body, f"d-{number}") for number in range(6)]
        answers = [await client.post(url, content=body, headers=one) for one in headers]
        statuses = [answer.status_code for answer in answers]
        assert statuses[0] == 202
        assert statuses[-1] == 503
        assert answers[-1].headers["retry-after"] == "1"
        hosted.complete()
        assert (await client.post(url, content=body, headers=signed("standard", body, "d-5"))).status_code == 202
        assert len(hosted.values()) == statuses.count(202) + 1


async def test_with_answer_complete_the_answer_waits_for_the_pipelines(tmp_path: Path) -> None:
    async with receiving(tmp_path, answer="complete") as (hosted, url), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(url, content=b"{}", headers=signed("standard", b"{}")))
        await eventually(lambda: bool(hosted.values()))
        assert not asked.done()
        hosted.complete()
        assert (await asked).status_code == 202


async def test_interceptors_split_a_delivery_into_events(tmp_path: Path) -> None:
    async with receiving(tmp_path, interceptors_in=LINES) as (hosted, url), httpx.AsyncClient() as client:
        answer = await client.post(url, content=b"a\nb\nc", headers=signed("standard", b"a\nb\nc"))
        assert answer.status_code == 202
        assert hosted.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "hooks", 405), ("POST", "other", 404)])
async def test_only_posts_to_its_path_are_accepted(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with receiving(tmp_path, path="/hooks") as (_, url), httpx.AsyncClient() as client:
        assert (await client.request(method, url + path, headers=signed("standard", b""))).status_code == status


def test_beyond_this_machine_it_needs_tls_and_a_signature_or_auth() -> None:
    strict = Permissions(exposed=False)
    with pytest.raises(NotPermitted, match="`tls` and `auth`"):
        make_connector("webhook-server", {"port": 1, "host": "0.0.0.0"}, strict)
    with pytest.raises(NotPermitted, match=r"needs `tls`$"):
        make_connector("webhook-server", {"port": 1, "host": "0.0.0.0", "signature": options("github")}, strict)


@pytest.mark.parametrize("style", STYLES)
async def test_a_value_is_sent_again_with_the_same_ids_and_a_valid_signature(tmp_path: Path, style: str) -> None:
    with serving() as server:
        server.answer = lambda asked: Says(503 if len(server.asked) == 1 else 200, {}, b"")
        config = {"url": server.url, "signature": options(style)}
        async with hosting(tmp_path, "webhook-client", config, has_in=True, has_out=False) as hosted:
            await hosted.connected()
            with pytest.raises(Lost):
                await hosted.deliver([b'{"n": 1}', b'{"n": 2}'], [1, 2], 5, "p:1:3/9")
            await hosted.deliver([b'{"n": 1}', b'{"n": 2}'], [1, 2], 5, "p:1:3/9")
    assert server.bodies == [b'{"n": 1}', b'{"n": 1}', b'{"n": 2}']
    first, again, second = (asked.headers for asked in server.asked)
    names = ["idempotency-key", *({"github": ["x-github-delivery"], "standard": ["webhook-id"]}.get(style, []))]
    for name in names:
        assert first[name] == again[name] != second[name]
    for asked in server.asked:
        verify(Signature.model_validate(options(style)), asked.headers, asked.body, time.time())
    assert first["content-type"] == "application/json"


async def test_what_the_client_sends_the_server_stores_once_even_if_an_answer_is_lost(tmp_path: Path) -> None:
    async with receiving(tmp_path / "server") as (receiver, url):
        config = {"url": url, "signature": options("standard")}
        for _ in range(2):  # the second is another process, which does not know what the first has sent
            folder = tmp_path / "client"
            async with hosting(folder, "webhook-client", config, has_in=True, has_out=False) as hosted:
                await hosted.connected()
                await hosted.deliver([b"1", b"2"], [1, 2], 5, "p:1:3/9")
        assert receiver.values() == [b"1", b"2"]
