"""Delivery to a real sink program with the SDK, blocking and asyncio, in a thread."""

import asyncio
from pathlib import Path

import pytest

from penstock.client import DataFile
from penstock.client.sink import lines, read_committed
from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.connectors.sink_api import YES, SinkLost
from penstock.core.address import Address
from tests.client.sink.recorder import Recorder
from tests.client.sink.running_sink import KINDS, Serve, serve_with
from tests.connectors.connector_protocol.scripted_sink import soon
from tests.delivery.fake_epoch import FakeEpoch, Row
from tests.support.waiting import eventually


@pytest.fixture(params=KINDS)
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    return serve_with(request.param, tmp_path / "state")


def sink_at(address: str, **options: object) -> ConnectorSink:
    parsed = Address.parse(address)
    return ConnectorSink(ConnectorProtocolOptions(host=parsed.host, port=parsed.port, **options), "p/out")  # type: ignore[arg-type]


async def deliver(sink: ConnectorSink, epoch: FakeEpoch) -> None:
    assert await soon(sink.prepare(epoch)) == YES
    await sink.commit(epoch.transaction)


async def test_epochs_arrive_in_order_with_keys_and_times(serve: Serve) -> None:
    recorder = Recorder()
    with serve(recorder) as address:
        sink = sink_at(address)
        await sink.open(b"")
        first = FakeEpoch([Row(b"ab", b"k", 1_999), Row(b""), Row(b"c", b"", -1_999)])
        await deliver(sink, first)
        await deliver(sink, FakeEpoch([Row(b"d", b"", 0)], start=first.end, number=2, attempt=2))
        await sink.end()
        await sink.close()
    assert [(m.id, m.event_time, m.key, bytes(m.payload)) for m in recorder.committed] == [
        (0, 1, b"k", b"ab"),
        (2, 0, b"", b""),
        (2, -2, b"", b"c"),
        (3, 0, b"", b"d"),
    ]
    assert [call for call in recorder.calls if call[0] == "commit"] == [("commit", b"p:1:1"), ("commit", b"p:2:2")]


async def test_a_vote_of_no_and_an_abort_leave_nothing_behind(serve: Serve) -> None:
    recorder = Recorder()
    recorder.votes = [False, True, True]
    with serve(recorder) as address:
        sink = sink_at(address)
        await sink.open(b"")
        for attempt, expected in ((1, False), (2, True)):
            vote = await soon(sink.prepare(FakeEpoch([b"ab", b"c"], attempt=attempt)))
            assert vote.yes is expected
            await sink.abort(b"p:1:%d" % attempt)
        await deliver(sink, FakeEpoch([b"ab", b"c"], attempt=3))
        await sink.end()
        await sink.close()
    assert recorder.payloads == [b"ab", b"c"]


async def test_an_epoch_cancelled_before_phase_1_leaves_nothing_behind(serve: Serve) -> None:
    recorder = Recorder()
    with serve(recorder) as address:
        sink = sink_at(address)
        await sink.open(b"")
        await deliver(sink, FakeEpoch([b"first"]))
        epoch = FakeEpoch([b"second", b"third"], start=5, number=2, attempt=2, is_journalled=False)
        preparing = asyncio.create_task(sink.prepare(epoch))
        await eventually(lambda: len(recorder.staged) == 2)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        await sink.abort(epoch.transaction_id)
        await deliver(sink, FakeEpoch([b"second", b"third"], start=5, number=2, attempt=3))
        await sink.end()
        await sink.close()
    assert recorder.payloads == [b"first", b"second", b"third"]


@pytest.mark.parametrize("is_decided", [True, False])
async def test_a_vote_that_was_not_answered_is_settled_at_the_next_open(
    serve: Serve, tmp_path: Path, is_decided: bool
) -> None:
    with serve(DataFile(tmp_path / "out"), encode=lines) as address:
        sink = sink_at(address)
        await sink.open(b"")
        epoch = FakeEpoch([b"ab", b"c"])
        assert await soon(sink.prepare(epoch)) == YES
        await sink.close()  # as a worker that is killed would
        again = sink_at(address)
        await again.open(epoch.transaction_id if is_decided else b"")
        start = epoch.end if is_decided else 0
        await deliver(again, FakeEpoch([b"last"], start=start, number=2, attempt=2))
        await again.end()
        await again.close()
    committed = (tmp_path / "out").read_bytes()[: read_committed(tmp_path / "state").size]
    assert committed == (b"ab\nc\nlast\n" if is_decided else b"last\n")


@pytest.mark.parametrize("given", [b"", b"mistaken"])
async def test_a_wrong_cookie_is_reported_without_revealing_any(serve: Serve, tmp_path: Path, given: bytes) -> None:
    (tmp_path / "cookie").write_bytes(given + b"\n")
    file = tmp_path / "cookie" if given else None
    with serve(Recorder(), cookie=b"right") as address:
        sink = sink_at(address, cookie_file=file)
        with pytest.raises(SinkLost, match="the cookie is wrong") as caught:
            await sink.open(b"")
        assert "right" not in str(caught.value)
        (tmp_path / "cookie").write_bytes(b"right\n")
        after = sink_at(address, cookie_file=tmp_path / "cookie")
        await after.open(b"")
        await after.close()


async def test_many_megabytes_arrive_unchanged(serve: Serve, tmp_path: Path) -> None:
    with serve(DataFile(tmp_path / "out"), encode=lines) as address:
        sink = sink_at(address)
        await sink.open(b"")
        values = [b"%07d" % number * (number % 40) for number in range(100_000)]
        start = 0
        for number in (1, 2):
            epoch = FakeEpoch(values, start=start, number=number, attempt=number, block_rows=5_000)
            await deliver(sink, epoch)
            start = epoch.end
        await sink.end()
        await sink.close()
    committed = (tmp_path / "out").read_bytes()[: read_committed(tmp_path / "state").size]
    assert committed == b"".join(value + b"\n" for value in values * 2)


async def test_a_stopped_sink_is_noticed_and_reconnected(serve: Serve, tmp_path: Path) -> None:
    with serve(DataFile(tmp_path / "out"), encode=lines) as address:
        sink = sink_at(address)
        await sink.open(b"")
        await deliver(sink, FakeEpoch([b"ab"]))
    await eventually(lambda: not sink.is_open)
    with pytest.raises(SinkLost):
        await sink.prepare(FakeEpoch([b"c"], start=2, number=2, attempt=2))
    await sink.close()
    with serve(DataFile(tmp_path / "out"), encode=lines) as address:
        sink = sink_at(address)
        await sink.open(b"p:1:1")
        await deliver(sink, FakeEpoch([b"c"], start=2, number=2, attempt=3))
        await sink.end()
        await sink.close()
    assert (tmp_path / "out").read_bytes()[: read_committed(tmp_path / "state").size] == b"ab\nc\n"
