"""`http-server` with real clients: httpx, and raw sockets for what no client would send."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from penstock.connectors.api import StreamGone
from penstock.connectors.http_server.connector import HttpServer
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.real_host import LINES, Hosted, hosting
from tests.support.waiting import SECONDS_MAX, eventually


@asynccontextmanager
async def serving(folder: Path, *, has_in: bool = True, **config: Any) -> AsyncIterator[tuple[Hosted, str]]:
    host_options = {key: config.pop(key) for key in [*config] if key in HOST_OPTIONS}
    async with hosting(folder, "http-server", {"port": 0, **config}, has_in=has_in, **host_options) as hosted:
        await hosted.connected()
        assert isinstance(hosted.connector, HttpServer)
        yield hosted, hosted.connector.addresses[0]


JOIN = InterceptorSpec(type="join", config={"delimiter": "|", "max_elements": 100})
BODY = (b"x" * 99 + b"\n") * 6000
PREFIXED = InterceptorSpec(type="length-prefixed")
FRAMINGS = ["Content-Length: 6\r\n\r\na body", "Transfer-Encoding: chunked\r\n\r\n"]
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
HOST_OPTIONS = ("interceptors_in", "interceptors_out", "quota_bytes", "ack", "segments")


async def answered(
    hosted: Hosted, asked: "asyncio.Task[httpx.Response]", make: Callable[[bytes], bytes | None] = bytes.upper
) -> httpx.Response:
    """Acts as the pipeline: replies to the events that have arrived, and completes their epoch."""
    await eventually(lambda: bool(hosted.values()))
    for event in hosted.events():
        if (reply := make(event.value)) is not None:
            with suppress(StreamGone):
                await hosted.deliver([reply], [event.event_id], event.stream_id)
    hosted.complete()
    return await asked


async def raw(address: str, data: bytes, *, end: bool = False) -> bytes:
    """Send the bytes. Returns everything until the server closes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(SECONDS_MAX):
            return await reader.read()
    finally:
        writer.close()


async def test_a_request_is_answered_with_what_the_pipeline_makes_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/a?b=c", content=b"hello"))
        response = await answered(hosted, asked)
        assert (response.status_code, response.content) == (200, b"HELLO")
        assert response.headers["content-type"] == "application/octet-stream"


async def test_an_event_describes_its_request_without_its_secrets(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address), httpx.AsyncClient() as client:
        headers = {"content-type": "text/plain", "x-mine": "1", "authorization": "Bearer s3cret", "cookie": "a=s3cret"}
        await client.put(f"http://{address}/a%20b?c=d", content=b"x", headers=headers)
        (event,) = hosted.events()
        metadata = event.metadata
        assert (metadata["method"], metadata["path"], metadata["query"], metadata["content_type"]) == (
            "PUT",
            "/a b",
            "c=d",
            "text/plain",
        )
        assert metadata["headers"]["x-mine"] == "1"
        assert metadata["peer"].startswith("127.0.0.1:")
        assert "s3cret" not in json.dumps(metadata)


async def test_a_body_of_many_lines_is_many_events_and_one_reply(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, interceptors_in=LINES, interceptors_out=(JOIN,)) as (hosted, address),
        httpx.AsyncClient() as client,
    ):
        hosted.hold()
        headers = {"content-type": "application/x-ndjson"}
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"a\nb\nc", headers=headers))
        await eventually(lambda: len(hosted.values()) == 3)
        assert hosted.values() == [b"a", b"b", b"c"]
        assert {event.metadata.get("content_type") for event in hosted.events()} == {"application/x-ndjson"}
        response = await answered(hosted, asked)
        assert response.content == b"A|B|C|"


async def test_a_request_without_replies_is_answered_204(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"quiet"))
        response = await answered(hosted, asked, lambda _: None)
        assert (response.status_code, response.content) == (204, b"")


async def test_without_a_link_to_in_a_request_is_answered_202_when_it_is_durable(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False, ack="durable") as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        response = await client.post(f"http://{address}/", content=b"x")
        assert response.status_code == 202
        assert hosted.values() == [b"x"]


async def test_a_request_that_is_not_answered_in_time_is_answered_504_and_its_reply_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, timeout="200ms") as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        response = await client.post(f"http://{address}/", content=b"slow")
        assert response.status_code == 504
        assert b"no reply within 0.2 s" in response.content
        (event,) = hosted.events()
        await eventually(lambda: not hosted.host.streams)
        with pytest.raises(StreamGone):
            await hosted.deliver([b"late"], [event.event_id], event.stream_id)


async def test_a_client_that_disconnects_ends_its_stream_and_its_reply_is_a_dead_letter(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address):
        hosted.hold()
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        await eventually(lambda: bool(hosted.values()))
        writer.close()
        await eventually(lambda: not hosted.host.streams)
        (event,) = hosted.events()
        with pytest.raises(StreamGone, match="gone"):
            await hosted.deliver([b"X"], [event.event_id], event.stream_id)
        assert hosted.host.counts == {"aborted_requests": 1}


async def test_replies_that_no_client_waits_for_are_dead_letters(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, _):
        with pytest.raises(StreamGone):
            await hosted.deliver([b"a window"], [0])
        with pytest.raises(StreamGone):
            await hosted.deliver([b"of before a restart"], [1], 77)


async def test_a_client_that_disconnects_in_the_middle_of_a_body_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, interceptors_in=LINES) as (hosted, address):
        sent = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nwhole line\nhalf a li"
        await raw(address, sent, end=True)
        await eventually(lambda: hosted.host.counters.streams == 1 and not hosted.host.streams)
        assert (hosted.values(), hosted.dead_letters()) == ([], [])


async def test_a_connection_is_a_stream_and_its_requests_are_its_events(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address), httpx.AsyncClient() as client:
        for number in range(3):
            await client.post(f"http://{address}/", content=b"%d" % number)
        async with httpx.AsyncClient() as other:
            await other.post(f"http://{address}/", content=b"other")
        mine = [event for event in hosted.events() if event.value != b"other"]
        assert [(event.event_id, event.value) for event in mine] == [(1, b"0"), (2, b"1"), (3, b"2")]
        assert len({event.stream_id for event in mine}) == 1
        assert len({event.stream_id for event in hosted.events()}) == 2


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address):
        hosted.hold()
        one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d"
        last = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\n3"
        asked = asyncio.create_task(raw(address, one % 1 + one % 2 + last))
        for number in (1, 2, 3):
            await eventually(lambda wanted=number: len(hosted.values()) == wanted)  # type: ignore[misc]
            event = hosted.events()[-1]
            await hosted.deliver([b"<%s>" % event.value], [event.event_id], event.stream_id)
            hosted.complete()
        answers = await asked
        assert [answers.find(b"<%d>" % number) > 0 for number in (1, 2, 3)] == [True] * 3
        assert answers.find(b"<1>") < answers.find(b"<2>") < answers.find(b"<3>")


async def test_many_pipelined_requests_are_stored_and_answered_once_each(tmp_path: Path) -> None:
    """More than are parsed at once."""
    one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n%04d"
    last = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast"
    async with serving(tmp_path, has_in=False) as (hosted, address):
        answers = await raw(address, b"".join(one % number for number in range(700)) + last + one % 9999)
        assert answers.count(b"HTTP/1.1 202 ") == 701
        assert answers.count(b"connection: close") == 1
        assert hosted.values() == [b"%04d" % number for number in range(700)] + [b"last"]


async def test_a_request_that_repeats_the_head_of_the_one_before_is_served_however_it_arrives(tmp_path: Path) -> None:
    head = b"POST /a?b=c HTTP/1.1\r\nHost: a\r\nX-Mine: 1\r\nContent-Length: 2\r\n\r\n"
    other = b"POST /d HTTP/1.1\r\nHost: a\r\nX-Mine: 2\r\nContent-Length: 2\r\n\r\n"
    pieces = [
        [head + b"01"],
        [head + b"02"],
        [head[:-1], head[-1:] + b"03"],
        [head, b"04"],
        [head + b"0", b"5"],
        [head + b"06"],
        [head + b"07" + head + b"08"],
        [head + b"09" + head[:9], head[9:] + b"10"],
        [other + b"11"],
        [head + b"12"],
        [other + b"13"],
    ]
    async with serving(tmp_path, has_in=False) as (hosted, address):
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        for parts in pieces:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.01)
            for _ in range(b"".join(parts).count(b"POST")):
                assert b" 202 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        events = hosted.events()
        assert [event.value for event in events] == [b"%02d" % number for number in range(1, 14)]
        found = [
            (one.metadata["path"], one.metadata.get("query", ""), one.metadata["headers"]["x-mine"]) for one in events
        ]
        assert found == [("/d", "", "2") if number in (11, 13) else ("/a", "b=c", "1") for number in range(1, 14)]


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_request_to_upgrade_is_served_as_any_other(tmp_path: Path, framing: str) -> None:
    """Java's client asks for HTTP/2 with its first request."""
    head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + framing
    body = "2\r\na \r\n4\r\nbody\r\n0\r\n\r\n" if "chunked" in framing else ""
    again = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nagain"
    async with serving(tmp_path, has_in=False) as (hosted, address):
        answers = await raw(address, (head + body + head + body + again).encode())
        assert answers.count(b"HTTP/1.1 202 ") == 3
        assert hosted.values() == [b"a body", b"a body", b"again"]
        assert hosted.events()[0].metadata["headers"]["upgrade"] == "h2c"


async def test_a_client_that_expects_it_is_asked_for_its_body(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False, path="/events") as (hosted, address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /events HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"x")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
        writer.write(b"POST /elsewhere HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        refused = await reader.read()  # and it is closed: the body may follow, or not
        assert refused.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" in refused
        writer.close()
        assert hosted.values() == [b"x"]


async def test_garbage_behind_requests_is_refused_after_their_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address):
        one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d"
        answers = await raw(address, one % 1 + one % 2 + b"\x00garbage")
        assert [line.split()[1] for line in answers.split(b"\r\n") if line.startswith(b"HTTP/")] == [
            b"202",
            b"202",
            b"400",
        ]
        assert hosted.values() == [b"1", b"2"]


async def test_trailers_are_not_headers(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await raw(address, head + b"1\r\nx\r\n0\r\nX-Late: y\r\n\r\n")
        assert b" 202 " in answer
        assert "x-late" not in hosted.events()[0].metadata["headers"]


async def test_the_answer_to_head_has_no_body(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (_, address), httpx.AsyncClient() as client:
        for _ in range(2):
            assert (await client.head(f"http://{address}/")).status_code == 405


async def test_the_pipeline_may_set_status_content_type_and_headers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"x"))
        await eventually(lambda: bool(hosted.values()))
        (event,) = hosted.events()
        metadata = {
            "status": 418,
            "content_type": "text/x-pot",
            "headers": {"X-Pot": "tea", "Content-Length": "9", "a b": "c"},
        }
        await hosted.deliver([b"short"], [event.event_id], event.stream_id, metadata=[metadata])
        hosted.complete()
        response = await asked
        assert (response.status_code, response.content) == (418, b"short")
        assert (response.headers["content-type"], response.headers["x-pot"]) == ("text/x-pot", "tea")
        assert response.headers["content-length"] == "5"


async def test_headers_of_the_request_are_not_sent_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"x", headers={"x-mine": "1"}))
        await eventually(lambda: bool(hosted.values()))
        (event,) = hosted.events()
        await hosted.deliver([b"y"], [event.event_id], event.stream_id, metadata=[event.metadata])
        hosted.complete()
        response = await asked
        assert (response.status_code, "x-mine" in response.headers) == (200, False)


async def test_an_event_that_becomes_a_dead_letter_is_answered_400_with_the_reason(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"{"))
        await eventually(lambda: bool(hosted.values()))
        (event,) = hosted.events()
        metadata = {"reason": "it is not JSON", **event.metadata}
        await hosted.deliver([b"{"], [event.event_id], event.stream_id, metadata=[metadata])
        hosted.complete()
        response = await asked
        assert (response.status_code, response.text) == (400, "it is not JSON\n")


async def test_with_answer_reply_the_first_reply_is_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, answer="reply", ack="durable") as (hosted, address), httpx.AsyncClient() as client:
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"x"))
        await eventually(lambda: bool(hosted.values()))
        await asyncio.sleep(0.05)
        assert not asked.done()
        (event,) = hosted.events()
        await hosted.deliver([b"X"], [event.event_id], event.stream_id)
        assert (await asked).content == b"X"
        with pytest.raises(StreamGone):
            await hosted.deliver([b"another"], [event.event_id], event.stream_id)


async def test_at_its_quota_requests_are_answered_503_with_retry_after(tmp_path: Path) -> None:
    options = {"quota_bytes": 4096, "admission": "50ms", "retry_after_seconds": 7}
    async with serving(tmp_path, has_in=False, **options) as (hosted, address), httpx.AsyncClient() as client:
        answers = [await client.post(f"http://{address}/", content=b"x" * 1000) for _ in range(8)]
        refused = [answer for answer in answers if answer.status_code == 503]
        assert refused
        assert {answer.headers["retry-after"] for answer in refused} == {"7"}
        assert len(hosted.values()) == len(answers) - len(refused)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/events", 202), ("POST", "/event", 404), ("POST", "/events/1", 404), ("GET", "/events", 405)],
)
async def test_only_its_path_and_methods_are_accepted(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with (
        serving(tmp_path, has_in=False, path="/events") as (hosted, address),
        httpx.AsyncClient() as client,
    ):
        response = await client.request(method, f"http://{address}{path}", content=b"x")
        assert response.status_code == status
        assert (response.headers.get("allow") == "POST, PUT") is (status == 405)
        assert len(hosted.values()) == (status == 202)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_its_limit_is_answered_413_and_not_stored(tmp_path: Path, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    async with serving(tmp_path, has_in=False, body_bytes_max=2000) as (hosted, address), httpx.AsyncClient() as client:
        response = await client.post(f"http://{address}/", content=chunks() if chunked else b"x" * 3000)
        assert response.status_code == 413
        assert hosted.values() == []
        assert (await client.post(f"http://{address}/", content=b"x" * 2000)).status_code == 202


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 500,
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nX: " + b"y" * 40_000,
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"1;" + b"x" * 40_000,
        CHUNKED + b"0\r\nX: " + b"y" * 40_000,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 8_000,
    ],
)
async def test_garbage_ends_only_its_own_connection(tmp_path: Path, garbage: bytes) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address), httpx.AsyncClient() as client:
        assert (await client.post(f"http://{address}/", content=b"before")).status_code == 202
        assert b" 400 " in await raw(address, garbage)
        assert hosted.host.counts["bad_requests"] == 1
        assert (await client.post(f"http://{address}/", content=b"after")).status_code == 202
        assert hosted.values() == [b"before", b"after"]


async def test_a_body_refused_by_interceptors_is_answered_400_and_kept_as_a_dead_letter(tmp_path: Path) -> None:
    async with serving(tmp_path, interceptors_in=(PREFIXED,)) as (hosted, address), httpx.AsyncClient() as client:
        response = await client.post(f"http://{address}/", content=b"\xff" * 100)
        assert response.status_code == 400
        await eventually(lambda: len(hosted.dead_letters()) == 1)
        assert hosted.values() == []


async def test_a_client_that_sends_no_request_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, idle="200ms") as (hosted, address):
        assert await raw(address, b"POST / HT") == b""
        await eventually(lambda: not hosted.host.streams)


async def test_a_body_that_does_not_arrive_is_answered_408(tmp_path: Path) -> None:
    async with serving(tmp_path, timeout="200ms") as (hosted, address):
        assert b" 408 " in await raw(address, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
        assert hosted.values() == []


async def test_connections_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False, connections_max=1) as (hosted, address):
        async with httpx.AsyncClient() as client, httpx.AsyncClient() as second:
            assert (await client.post(f"http://{address}/", content=b"x")).status_code == 202
            with pytest.raises(httpx.TransportError):
                await second.post(f"http://{address}/", content=b"x")
        assert hosted.host.counts["refused_connections"] >= 1


async def test_a_drain_answers_accepted_requests_and_accepts_no_new_ones(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        asked = asyncio.create_task(client.post(f"http://{address}/", content=b"last"))
        await eventually(lambda: bool(hosted.values()))
        draining = asyncio.create_task(hosted.host.drain())
        await asyncio.sleep(0.05)
        response = await answered(hosted, asked)
        assert response.content == b"LAST"
        await draining
        with pytest.raises(httpx.TransportError):
            await client.post(f"http://{address}/", content=b"too late")


async def test_a_server_at_its_quota_can_be_stopped_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, quota_bytes=4096, interceptors_in=LINES) as (hosted, address):
        hosted.hold()
        asked = asyncio.create_task(
            raw(address, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n" + BODY)
        )
        await eventually(lambda: not hosted.host.room.there)
        async with asyncio.timeout(8):
            await hosted.host.stop()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_a_server_that_is_stopped_can_be_started_again_on_its_port(tmp_path: Path) -> None:
    async with serving(tmp_path, has_in=False) as (hosted, address), httpx.AsyncClient() as client:
        await client.post(f"http://{address}/", content=b"1")
        first = hosted.events()
    async with (
        serving(tmp_path, has_in=False, port=int(address.rpartition(":")[2])) as (hosted, address),
        httpx.AsyncClient() as client,
    ):
        await client.post(f"http://{address}/", content=b"2")
        assert len({event.stream_id for event in [*first, *hosted.events()]}) == 2


async def test_requests_are_accepted_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    async with (
        serving(tmp_path, has_in=False, tls=tls) as (hosted, address),
        httpx.AsyncClient(verify=ssl.create_default_context(cafile=tmp_path / "ca.pem")) as client,
    ):
        assert (await client.post(f"https://{address}/", content=b"x")).status_code == 202
        assert hosted.values() == [b"x"]


def test_invalid_options_are_refused() -> None:
    with pytest.raises(RequestError, match="body_bytes_max"):
        make_connector("http-server", {"port": 1, "body_bytes_max": "1GiB"})
    with pytest.raises(RequestError, match="methods"):
        make_connector("http-server", {"port": 1, "methods": ["BREW"]})


async def test_small_events_with_large_headers_do_not_fill_the_store(tmp_path: Path) -> None:
    headers = {"X-Large": "y" * 10_000}
    async with (
        serving(tmp_path, has_in=False, interceptors_in=LINES, stored_bytes_max="1MiB") as (hosted, address),
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        answer = await client.post("/", content=b"a\n" * 200_000, headers=headers)
        assert (answer.status_code, "stored_bytes_max" in answer.text) == (413, True)
        assert hosted.host.status().bytes < 4 << 20
        answer = await client.post("/", content=b"a\n" * 50, headers=headers)
        assert answer.status_code == 202


async def test_a_body_without_interceptors_is_one_event_however_small_the_limit(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, has_in=False, stored_bytes_max=1000) as (hosted, address),
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await client.post("/", content=b"x" * 100_000)).status_code == 202
        assert [len(event.value) for event in hosted.events()] == [100_000]


async def test_a_head_over_its_limit_is_refused_even_if_it_arrives_at_once(tmp_path: Path) -> None:
    many = b"".join(b"X%d: y\r\n" % number for number in range(2500))
    async with serving(tmp_path, has_in=False) as (hosted, address):
        said = await raw(address, b"POST / HTTP/1.1\r\nHost: x\r\n" + many + b"Content-Length: 1\r\n\r\na")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"head_bytes_max" in said
        assert hosted.events() == []


async def test_a_request_that_no_pipeline_would_read_is_refused(tmp_path: Path) -> None:
    async with (
        hosting(tmp_path, "http-server", {"port": 0}, has_in=True, has_out=False) as hosted,
        httpx.AsyncClient() as client,
    ):
        await hosted.connected()
        assert isinstance(hosted.connector, HttpServer)
        answer = await client.post(f"http://{hosted.connector.addresses[0]}/", content=b"x")
        assert (answer.status_code, answer.text) == (503, "no pipeline reads this connector\n")
        assert hosted.events() == []


async def test_requests_that_arrive_together_are_stored_together_and_each_gets_its_own_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address):
        hosted.hold()
        asked = [
            asyncio.create_task(
                raw(
                    address,
                    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n%02d" % number,
                )
            )
            for number in range(20)
        ]
        await eventually(lambda: len(hosted.values()) == 20)
        for event in hosted.events():
            assert event.metadata["headers"]["content-length"] == "2"
            assert event.metadata["peer"]
            await hosted.deliver([b"<%s>" % event.value], [event.event_id], event.stream_id)
        hosted.complete()
        for number, answer in enumerate(await asyncio.gather(*asked)):
            assert answer.endswith(b"<%02d>" % number)
        assert {event.event_id for event in hosted.events()} == {1}


async def test_a_client_that_leaves_while_it_waits_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (hosted, address), httpx.AsyncClient() as client:
        hosted.hold()
        host, port = address.rsplit(":", 1)
        _, leaving = await asyncio.open_connection(host, int(port))
        staying = asyncio.create_task(client.post(f"http://{address}/", content=b"stays"))
        leaving.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nleaves")
        await eventually(lambda: len(hosted.values()) == 2)
        leaving.transport.abort()
        await eventually(lambda: hosted.host.counts.get("aborted_requests") == 1)
        hosted.complete()
        assert (await staying).status_code == 204
