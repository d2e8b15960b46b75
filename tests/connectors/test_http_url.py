"""`http://…` as a sink: a request for each block, against a real server."""

import asyncio
import ssl
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from penstock.connectors.api import SegmentPort
from penstock.connectors.sink_api import SinkLost
from penstock.connectors.urls import parse_sink
from penstock.delivery.sinks import UrlNonVotingSink
from tests.connectors.http_server import Answer, Server, serving
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.waiting import SECONDS_MAX


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def sink_of(url: str) -> UrlNonVotingSink:
    return UrlNonVotingSink(parse_sink(url).connector, "p/s", lambda: SegmentPort(""))


async def test_every_block_is_posted_over_one_connection_under_its_own_key(server: Server) -> None:
    sink = sink_of(f"http://127.0.0.1:{server.port}/in?who=me")
    await sink.deliver(FakeEpoch([b"a", b"b", b"c"], block_rows=2))
    await sink.close()
    assert [(path, body) for path, _, body in server.posts] == [("/in?who=me", b"a\nb\n"), ("/in?who=me", b"c\n")]
    assert [headers["Idempotency-Key"] for _, headers, _ in server.posts] == ["p:1:1/0", "p:1:1/1"]
    assert server.posts[0][1]["Content-Type"].startswith("text/plain")
    assert server.connections == 1


async def test_json_has_one_object_per_line(server: Server) -> None:
    sink = sink_of(f"http://127.0.0.1:{server.port}/?penstock_format=json")
    await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()
    ((_, headers, body),) = server.posts
    assert body == b'{"id":0,"event_time_us":null,"key":"","value":"a"}\n'
    assert headers["Content-Type"] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            Answer(422, body=b"\nno such column\nsecond line\n"),
            "replied 422 Unprocessable (Entity|Content): no such column",
        ),
        (Answer(404), "replied 404 Not Found"),
        (Answer(301, {"Location": "/there"}), "replied 301 Moved Permanently"),
        (Answer(500, body=b"x" * 100_000), "replied 500 Internal Server Error: x{200}$"),
    ],
)
async def test_a_refusal_is_reported_and_the_block_is_sent_again(server: Server, answer: Answer, reason: str) -> None:
    server.answers = [Answer(), answer]
    sink = sink_of(f"http://127.0.0.1:{server.port}/in")
    epoch = FakeEpoch([b"a", b"b"], block_rows=1)
    with pytest.raises(SinkLost, match=reason):
        await sink.deliver(epoch)
    await sink.deliver(epoch)
    await sink.close()
    assert [headers["Idempotency-Key"] for _, headers, _ in server.posts] == ["p:1:1/0", "p:1:1/1", "p:1:1/1"]


async def test_retry_after_of_a_refused_block_is_obeyed(server: Server) -> None:
    server.answers = [Answer(429, {"Retry-After": "3600"})]
    sink = sink_of(f"http://127.0.0.1:{server.port}/in")
    with pytest.raises(SinkLost, match="replied 429 Too Many Requests"):
        await sink.deliver(FakeEpoch([b"a"]))
    with pytest.raises(SinkLost, match=r"asks to wait \d+ s longer"):
        await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()
    assert len(server.posts) == 1


async def test_a_connection_closed_by_the_server_is_reopened(server: Server) -> None:
    server.answers = [Answer(closes=True)]
    sink = sink_of(f"http://127.0.0.1:{server.port}/in")
    await sink.deliver(FakeEpoch([b"a"]))
    while not server.closed:  # noqa: ASYNC110  it is another thread that closes it
        await asyncio.sleep(0.01)
    await sink.deliver(FakeEpoch([b"b"], number=2, start=1))
    await sink.close()
    assert [body for _, _, body in server.posts] == [b"a\n", b"b\n"]


async def test_a_server_that_does_not_answer_is_lost_after_the_timeout(server: Server) -> None:
    server.answers = [Answer(seconds=1.0)]
    sink = sink_of(f"http://127.0.0.1:{server.port}/in?penstock_timeout=100ms")
    with pytest.raises(SinkLost, match=r"did not answer within 0\.1 s"):
        await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()


async def test_an_unreachable_server_is_lost() -> None:
    sink = sink_of("http://127.0.0.1:1/in")
    with pytest.raises(SinkLost, match=r"127\.0\.0\.1:1/in cannot be reached"):
        await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()


async def test_close_does_not_wait_for_a_server_that_hangs(server: Server) -> None:
    server.answers = [Answer(seconds=30.0)]
    sink = sink_of(f"http://127.0.0.1:{server.port}/in")
    delivering = asyncio.create_task(sink.deliver(FakeEpoch([b"a"])))
    while not server.posts:  # noqa: ASYNC110  it is another thread that adds them
        await asyncio.sleep(0.01)
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)
    await asyncio.wait_for(sink.close(), SECONDS_MAX)


async def test_headers_come_from_a_file_that_is_reread_after_a_failure(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    sink = sink_of(f"http://127.0.0.1:{server.port}/in?penstock_headers_file={file}")
    with pytest.raises(SinkLost, match="cannot read the headers"):
        await sink.deliver(FakeEpoch([b"a"]))
    file.write_text("Authorization Bearer x\n")
    with pytest.raises(SinkLost, match="is not a header"):
        await sink.deliver(FakeEpoch([b"a"]))
    file.write_text("Authorization: Bearer x:y\n\nX-Team: sinks\n")
    await sink.deliver(FakeEpoch([b"a"]))
    await sink.close()
    ((_, headers, _),) = server.posts
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer x:y", "sinks")


async def test_https_requires_a_trusted_certificate(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)

    def secure(httpd: ThreadingHTTPServer) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)

    with serving(secure) as server:
        place = f"https://127.0.0.1:{server.port}/in"
        for url, reason in {
            place: "certificate verify failed|CERTIFICATE_VERIFY_FAILED",
            f"{place}?penstock_tls.ca={tmp_path}/nothing": "TLS files .* cannot be used",
        }.items():
            sink = sink_of(url)
            with pytest.raises(SinkLost, match=reason):
                await sink.deliver(FakeEpoch([b"a"]))
            await sink.close()
        sink = sink_of(f"{place}?penstock_tls.ca={file}")
        await sink.deliver(FakeEpoch([b"a"]))
        await sink.close()
    assert len(server.posts) == 1
