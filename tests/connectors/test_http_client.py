"""`http-client` against a real server that replies as scripted."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.connectors.api import Lost, StreamGone
from penstock.connectors.http_client import wait_of
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from tests.connectors.http_serving import Says, serving
from tests.connectors.real_host import Hosted, hosting


@asynccontextmanager
async def sending(folder: Path, url: str, *, has_out: bool = False, **config: Any) -> AsyncIterator[Hosted]:
    async with hosting(folder, "http-client", {"url": url, **config}, has_in=True, has_out=has_out) as hosted:
        await hosted.connected()
        yield hosted


async def test_each_value_is_a_request_with_an_idempotency_key(tmp_path: Path) -> None:
    with serving() as server:
        async with sending(tmp_path, server.url, headers={"Authorization": "Bearer x"}) as hosted:
            metadata = [{"content_type": "text/plain"}, {}]
            await hosted.deliver([b"one", b"two"], [1, 2], 5, "p:1:3/9", metadata=metadata)
    first, second = server.asked
    assert (first.method, first.path, first.body, second.body) == ("POST", "/take?a=b", b"one", b"two")
    assert (first.headers["content-type"], second.headers["content-type"]) == ("text/plain", "application/octet-stream")
    assert (first.headers["idempotency-key"], second.headers["idempotency-key"]) == ("p:1:3/9-1", "p:1:3/9-0")
    assert first.headers["authorization"] == "Bearer x"


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_the_method_can_be_chosen(tmp_path: Path, method: str) -> None:
    with serving() as server:
        async with sending(tmp_path, server.url, method=method) as hosted:
            await hosted.deliver([b"one"], [1], 5)
    assert server.asked[0].method == method


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_server_that_fails_is_lost_and_values_it_accepted_are_not_sent_again(
    tmp_path: Path, status: int
) -> None:
    with serving() as server:
        server.answer = lambda asked: Says(status if asked.body == b"two" else 200, {}, b"later\nplease")
        async with sending(tmp_path, server.url) as hosted:
            with pytest.raises(Lost, match=f"replied {status} .*: later$"):
                await hosted.deliver([b"one", b"two", b"three"], [1, 2, 3], 5)
            server.answer = lambda _: Says(201, {}, b"")
            await hosted.deliver([b"one", b"two", b"three"], [1, 2, 3], 5)
    assert server.bodies == [b"one", b"two", b"two", b"three"]
    assert server.asked[1].headers["idempotency-key"] == server.asked[2].headers["idempotency-key"]


@pytest.mark.parametrize("status", [400, 404, 301])
async def test_a_refused_value_is_a_dead_letter_and_the_others_are_sent(tmp_path: Path, status: int) -> None:
    with serving() as server:
        server.answer = lambda asked: Says(status if asked.body == b"two" else 200, {}, b"no such thing")
        async with sending(tmp_path, server.url) as hosted:
            with pytest.raises(StreamGone, match=f"replied {status}.*no such thing") as raised:
                await hosted.deliver([b"one", b"two", b"three"], [1, 2, 3], 5)
            assert raised.value.places == [1]
    assert server.bodies == [b"one", b"two", b"three"]


async def test_with_on_refusal_retry_a_refused_value_is_sent_again(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda _: Says(400, {}, b"")
        async with sending(tmp_path, server.url, on_refusal="retry") as hosted:
            with pytest.raises(Lost, match="replied 400"):
                await hosted.deliver([b"one"], [1], 5)


@pytest.mark.parametrize("is_date", [False, True])
async def test_retry_after_is_obeyed(tmp_path: Path, is_date: bool) -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    with serving() as server:
        server.answer = lambda _: Says(503, {"Retry-After": until if is_date else "100"}, b"")
        async with sending(tmp_path, server.url) as hosted:
            with pytest.raises(Lost, match="replied 503"):
                await hosted.deliver([b"one"], [1], 5)
            with pytest.raises(Lost, match=r"asks to wait \d+ s longer"):
                await hosted.deliver([b"one"], [1], 5)
    assert server.bodies == [b"one"]


async def test_an_unavailable_server_is_lost_and_gets_everything_when_it_is_back(tmp_path: Path) -> None:
    with serving() as server:
        port = server.port
    async with sending(tmp_path, server.url) as hosted:
        with pytest.raises(Lost, match="cannot be reached"):
            await hosted.deliver([b"one"], [1], 5)
        with serving(port) as server:
            await hosted.deliver([b"one"], [1], 5)
            assert server.bodies == [b"one"]


async def test_a_server_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with sending(tmp_path, url, timeout="100ms") as hosted:
            with pytest.raises(Lost, match=r"did not answer within 0.1 s"):
                await hosted.deliver([b"one"], [1], 5)


async def test_a_server_that_responds_with_garbage_is_lost(tmp_path: Path) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x00\xff" * 100)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with server, sending(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as hosted:
        with pytest.raises(Lost, match="cannot be reached"):
            await hosted.deliver([b"one"], [1], 5)


async def test_responses_are_events_that_name_their_request(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda asked: Says(
            404 if asked.body == b"two" else 200, {"Content-Type": "text/plain"}, asked.body.upper()
        )
        async with sending(tmp_path, server.url, has_out=True) as hosted:
            with pytest.raises(StreamGone):
                await hosted.deliver([b"one", b"two"], [7, 8], 5)
            first, second = hosted.events()
    assert (first.value, first.metadata["status"], first.metadata["content_type"]) == (b"ONE", 200, "text/plain")
    assert (second.value, second.metadata["status"]) == (b"TWO", 404)
    assert first.metadata["request"] == {"source": "mine", "stream_id": 5, "message_id": 7}
    assert first.stream_id == second.stream_id
    assert "?" not in first.metadata["peer"], "what follows may be a token"


async def test_without_a_link_from_out_no_response_is_stored(tmp_path: Path) -> None:
    with serving() as server:
        async with sending(tmp_path, server.url) as hosted:
            await hosted.deliver([b"one"], [1], 5)
            assert hosted.events() == []


async def test_a_response_over_its_limit_is_truncated_and_marked(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda _: Says(200, {}, b"x" * 5000)
        async with sending(tmp_path, server.url, has_out=True, response_bytes_max=1000) as hosted:
            await hosted.deliver([b"one"], [1], 5)
            (event,) = hosted.events()
    assert (len(event.value), event.metadata["truncated"]) == (1000, True)


async def test_values_delivered_during_a_drain_are_sent_and_their_responses_dropped(tmp_path: Path) -> None:
    with serving() as server:
        async with sending(tmp_path, server.url, has_out=True) as hosted:
            await hosted.host.drain()
            await hosted.deliver([b"one"], [1], 5)
            assert hosted.host.counts == {"responses_dropped": 1}
    assert server.bodies == [b"one"]


async def test_requests_are_sent_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(tls=context) as server:
        url = server.url.replace("http:", "https:")
        async with sending(tmp_path / "data", url, tls={"ca": str(tmp_path / "ca.pem")}) as hosted:
            await hosted.deliver([b"one"], [1], 5)
            assert server.bodies == [b"one"]


@pytest.mark.parametrize("url", ["ftp://example.org", "example.org", "http://user:secret@example.org/"])
def test_an_invalid_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(RequestError) as raised:
        make_connector("http-client", {"url": url})
    assert "secret" not in str(raised.value)


async def test_a_content_type_that_no_header_can_hold_does_not_block_its_value(tmp_path: Path) -> None:
    with serving() as server:
        async with sending(tmp_path, server.url) as hosted:
            metadata = [{"content_type": "text/plain\r\nX-Evil: 1"}, {"content_type": "text/plän"}, {"content_type": 7}]
            await hosted.deliver([b"one", b"two", b"three"], [1, 2, 3], 5, metadata=metadata)
    assert {one.headers["content-type"] for one in server.asked} == {"application/octet-stream"}
    assert server.bodies == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://h:99999/"},
        {"url": "http://h/a b"},
        {"url": "http://h/", "tls": {}},
        {"url": "http://h/", "headers": {"A b": "x"}},
        {"url": "http://h/", "headers": {"Authorization": "hunter2\nx"}},
        {"url": "http://h/", "content_type": "hunter2\nx"},
    ],
)
def test_options_that_could_never_be_sent_are_refused_and_not_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as raised:
        make_connector("http-client", wrong)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("value", ["\xb2", "soon", "-1", "Mon, 99 Foo 9999", ""])
def test_an_unreadable_retry_after_is_ignored(value: str) -> None:
    assert wait_of(value, datetime.now(UTC), 60.0) == 0.0
