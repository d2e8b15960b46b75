"""Outgoing interceptors that buffer rows: epochs complete in order when their rows were sent."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.connectors.api import Host, Lost, Outgoing, StreamGone, StreamLost
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.chain import OutgoingChain
from penstock.connectors.interceptors.join import Joining, JoinOptions
from penstock.connectors.sink_api import PLAIN, Block, SinkLost
from penstock.core.errors import DiskFull
from penstock.delivery import non_voting
from penstock.delivery.outbox import outbox
from penstock.delivery.outbox.rows import MakeChain
from penstock.delivery.outbox.sink import OutboxSink
from penstock.protocol.stored.bulk import Wanted, decode
from penstock.protocol.stored.names import Kind
from tests.delivery.fake_epoch import FakeEpoch
from tests.delivery.outbox.scene import A, B, Scripted, SinkScene, encode_rows


def join(elements: int = 1000, wait_ms: int = 150) -> MakeChain:
    options = JoinOptions(max_elements=elements, max_wait_ms=wait_ms)
    return lambda: OutgoingChain([Joining(options)])


async def test_values_of_several_epochs_are_sent_together_when_the_first_has_waited_long_enough(
    scene: SinkScene,
) -> None:
    x = await scene.add("x", join(wait_ms=1000))
    for number in range(3):
        await scene.put_out((A, b"a%d" % number), (B, b"b%d" % number))
    await scene.until(lambda: scene.hosts["x"].buffered == 6)
    assert x.given == []
    assert scene.waiting == 3, "none is followed before its rows have left"
    await scene.delivered()
    assert x.values(A) == [b"a0\na1\na2\n"]
    assert x.values(B) == [b"b0\nb1\nb2\n"], "no stream is mixed with another"
    assert [(one.ids, one.keys, one.name) for one in x.given] == [
        ([201], (), "p:1:2/0"),
        ([202], (), "p:1:2/1"),
    ]


async def test_enough_values_are_sent_at_once_and_the_rest_waits(scene: SinkScene) -> None:
    x = await scene.add("x", join(elements=2, wait_ms=60_000))
    await scene.put_out((A, b"1"), (A, b"2"), (A, b"3"))
    await scene.until(lambda: x.given)
    assert x.values(A) == [b"1\n2\n"]
    assert scene.waiting == 1
    await scene.put_out((A, b"4"))
    await scene.delivered()
    assert x.values(A) == [b"1\n2\n", b"3\n4\n"]


async def test_without_a_wait_the_values_of_one_step_are_sent_together(scene: SinkScene) -> None:
    x = await scene.add("x", join(wait_ms=0))
    await scene.put_out((A, b"1"), (B, b"2"), (A, b"3"))
    await scene.delivered()
    assert x.values(A) == [b"1\n3\n"]


async def test_a_stop_sends_everything_at_once(scene: SinkScene) -> None:
    x = await scene.add("x", join(wait_ms=60_000))
    await scene.put_out((A, b"1"))
    await scene.put_out((A, b"2"))
    await scene.until(lambda: scene.hosts["x"].buffered == 2)
    await scene.delivery.stop()
    assert x.values(A) == [b"1\n2\n"]
    assert scene.waiting == 0


async def test_a_drain_sends_everything_at_once(scene: SinkScene) -> None:
    x = await scene.add("x", join(wait_ms=60_000))
    await scene.put_out((A, b"1"))
    await scene.until(lambda: scene.hosts["x"].buffered == 1)
    idle = [scene.hosts["x"].is_idle]
    await scene.hosts["x"].flush()
    idle.append(scene.hosts["x"].is_idle)
    assert idle == [False, True]
    await scene.delivered()
    assert x.values(A) == [b"1\n"]


async def test_after_a_failure_all_unsettled_epochs_are_delivered_again_from_the_oldest_and_nothing_twice(
    scene: SinkScene,
) -> None:
    x = await scene.add("x", join(elements=3, wait_ms=100))
    is_down = True
    x.trouble = lambda outgoing: Lost("not now") if is_down and outgoing.stream == A else None
    for number in range(5):
        await scene.put_out((A, b"a%d" % number), (B, b"b%d" % number))
    await scene.until(lambda: scene.breakers.sink_refusal("x") is not None)
    is_down = False
    await scene.delivered()
    for stream, name in ((A, b"a"), (B, b"b")):
        lines = b"".join(x.values(stream)).split()
        assert lines == [name + b"%d" % number for number in range(5)]


async def test_waiting_rows_are_retained_when_their_stream_is_lost_and_their_epochs_complete(
    scene: SinkScene,
) -> None:
    x = await scene.add("x", join(wait_ms=50), probe_after_seconds=60.0, probe_after_seconds_max=60.0)
    x.trouble = lambda outgoing: StreamLost("reset") if outgoing.stream == A else None
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.put_out((A, b"a2"), (B, b"b2"))
    await scene.delivered()
    assert b"".join(x.values(B)) == b"b1\nb2\n"
    assert x.values(A) == []
    assert scene.retained_values("x") == [b"a1", b"a2"]
    x.trouble = lambda outgoing: None
    scene.hosts["x"].opened(A)
    await scene.until(lambda: b"".join(x.values(A)) == b"a1\na2\n")


async def test_waiting_rows_are_retained_when_the_sink_closes_their_stream(scene: SinkScene) -> None:
    x = await scene.add("x", join(wait_ms=60_000))
    await scene.put_out((A, b"a1"))
    await scene.until(lambda: scene.hosts["x"].buffered == 1)
    scene.hosts["x"].closed(A, "stop")
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    assert scene.retained_values("x") == [b"a1", b"a2"]
    assert x.given == []


async def test_after_a_crash_waiting_rows_are_delivered_again(scene: SinkScene) -> None:
    x = await scene.add("x", join(wait_ms=60_000))
    await scene.put_out((A, b"a1"))
    await scene.put_out((A, b"a2"))
    await scene.until(lambda: scene.hosts["x"].buffered == 2)
    await scene.crash()
    await scene.until(lambda: scene.hosts["x"].buffered == 2)
    await scene.hosts["x"].flush()
    await scene.delivered()
    assert x.values(A) == [b"a1\na2\n"]


async def test_no_more_epochs_are_in_flight_than_the_window_allows(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(non_voting, "UNSETTLED_EPOCHS_MAX", 3)
    x = await scene.add("x", join(wait_ms=1000))
    for number in range(5):
        await scene.put_out((A, b"%d" % number))
    await scene.until(lambda: scene.hosts["x"].buffered == 3)
    await asyncio.sleep(0.05)
    assert scene.hosts["x"].buffered == 3
    await scene.delivered()
    assert b"".join(x.values(A)) == b"0\n1\n2\n3\n4\n"


async def test_an_epoch_that_was_sent_waits_for_those_before_it(scene: SinkScene) -> None:
    x = await scene.add("x", join(elements=2, wait_ms=60_000))
    await scene.put_out((A, b"a1"))
    await scene.put_out((B, b"b1"), (B, b"b2"))
    await scene.until(lambda: x.values(B) == [b"b1\nb2\n"])
    await scene.scene.durable()
    assert scene.waiting == 2
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    assert x.values(B) == [b"b1\nb2\n"], "it is not given again"


class _Picky:
    """Refuses values that start with `!`."""

    buffered = 0
    wait_seconds = None
    counts: Sequence[int] | None = None

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        for value in values:
            if value.startswith(b"!"):
                raise BadBytes("it begins with !", value)
        return [*values]

    def flush(self) -> list[bytes]:
        return []


async def test_a_value_that_an_interceptor_refuses_is_a_dead_letter_and_the_rest_is_sent(scene: SinkScene) -> None:
    x = await scene.add("x", lambda: OutgoingChain([_Picky()]))
    x.shy = {B}
    await scene.put_out((A, b"a1"), (A, b"!a2"), (A, b"a3"), (B, b"!b1"), (B, b"b2"))
    await scene.delivered()
    scene.hosts["x"].opened(B)
    await scene.until(lambda: x.values(B) == [b"b2"])
    assert x.values(A) == [b"a1", b"a3"]
    await scene.scene.durable()
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"!a2", b"!b1"]
    assert scene.dead_letters("x")[0].reason == "it begins with !"


async def test_outgoing_values_that_are_not_joined_keep_their_keys(scene: SinkScene) -> None:
    x = await scene.add("x", lambda: OutgoingChain([_Picky()]))
    await scene.put_out((A, b"a1"), (A, b"a2"))
    await scene.delivered()
    given: Outgoing = x.given[0]
    assert (given.values, given.ids, given.keys) == ([b"a1", b"a2"], [1, 2], [b"key", b"key"])


async def test_rows_that_can_be_sent_are_not_lost_with_one_that_cannot_when_the_connector_fails(
    scene: SinkScene,
) -> None:
    x = await scene.add("x", lambda: OutgoingChain([_Picky()]))
    is_down = True
    x.trouble = lambda outgoing: Lost("not now") if is_down else None
    await scene.put_out((A, b"a1"), (A, b"!a2"), (A, b"a3"))
    await scene.until(lambda: scene.breakers.sink_refusal("x") is not None)
    is_down = False
    await scene.delivered()
    await scene.scene.durable()
    assert x.values(A) == [b"a1", b"a3"]
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"!a2"]


async def test_a_row_that_cannot_be_sent_is_retained_with_the_others_when_their_stream_is_lost(
    scene: SinkScene,
) -> None:
    x = await scene.add("x", lambda: OutgoingChain([_Picky()]))
    is_lost = True
    x.trouble = lambda outgoing: StreamLost("reset") if is_lost else None
    await scene.put_out((A, b"a1"), (A, b"!a2"), (A, b"a3"))
    await scene.delivered()
    assert scene.retained_values("x") == [b"a1", b"!a2", b"a3"]
    is_lost = False
    await scene.until(lambda: x.values(A) == [b"a1", b"a3"])
    await scene.scene.durable()
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"!a2"]


async def test_only_refused_values_become_dead_letters(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.trouble = lambda outgoing: StreamGone("too large", places=[1]) if len(outgoing.values) == 3 else None
    await scene.put_out((A, b"a1"), (A, b"a2"), (A, b"a3"), (B, b"b1"))
    await scene.delivered()
    await scene.scene.durable()
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"a2"]
    assert (scene.hosts["x"].events_out, scene.hosts["x"].dead_letters) == (3, 1)
    assert x.values(B) == [b"b1"]


async def test_rows_partly_retained_on_a_full_disk_are_not_retained_twice(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "APPEND_BYTES", 1)
    x = await scene.add("x")
    x.shy = {A}
    store = scene.scene.store
    append, count = store.append, 0

    def full(name: str, *args: Any, **more: Any) -> Any:
        nonlocal count
        count += name.endswith("held.x")
        if name.endswith("held.x") and count == 2:
            raise DiskFull("no room")
        return append(name, *args, **more)

    monkeypatch.setattr(store, "append", full)
    await scene.put_out((A, b"a1"), (A, b"a2"), (A, b"a3"))
    await scene.delivered()
    await scene.scene.durable()
    assert scene.retained_values("x") == [b"a1", b"a2", b"a3"]


# A buffer fails while an epoch is being delivered.


class BlockByBlock(FakeEpoch):
    """Every row is a block, which the test releases."""

    def __init__(self, number: int, *values: bytes) -> None:
        super().__init__(values, number=number)
        self.go = [asyncio.Event() for _ in [*values, "end"]]

    async def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        for event, row in zip(self.go, self.rows, strict=False):
            await event.wait()
            self.taken += 1
            yield Block(decode(encode_rows([(None, row.value)]), 0, Kind.STORED, wanted), 0)
        await self.go[-1].wait()


def at_once(number: int, *values: bytes) -> BlockByBlock:
    epoch = BlockByBlock(number, *values)
    for event in epoch.go:
        event.set()
    return epoch


async def fail_buffered(scene: SinkScene) -> None:
    """The connector fails with what is buffered, and works again at once."""
    x = scene.outsides["x"]
    x.trouble = lambda outgoing: Lost("not now")
    await scene.hosts["x"].flush()
    x.trouble = lambda outgoing: None
    scene.hosts["x"].connected()


async def direct_sink(scene: SinkScene, elements: int) -> OutboxSink:
    """The test delivers its epochs itself."""
    await scene.add("x", join(elements, wait_ms=60_000))
    return scene.sinks.make("direct", "x", "x", lambda: None)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["same connector", "connector replaced"])
async def test_rows_are_not_sent_while_rows_before_them_wait_to_be_delivered_again(
    scene: SinkScene, is_replaced: bool
) -> None:
    sink = await direct_sink(scene, elements=2)
    first = await sink.deliver(at_once(1, b"n1"))
    second = BlockByBlock(2, b"n2", b"n3", b"n4")
    delivering = asyncio.create_task(sink.deliver(second))
    await fail_buffered(scene)
    if is_replaced:
        await scene.sinks.detach("x")
        scene.attach("x")
    for event in second.go:
        event.set()
    with pytest.raises(SinkLost):
        await delivering
    assert first is not None
    first.cancel()
    await sink.deliver(at_once(1, b"n1"))
    assert await sink.deliver(at_once(2, b"n2", b"n3", b"n4")) is None
    assert scene.outsides["x"].values() == [b"n1\nn2\n", b"n3\nn4\n"]


async def test_an_epoch_does_not_begin_while_rows_before_it_wait_to_be_delivered_again(scene: SinkScene) -> None:
    sink = await direct_sink(scene, elements=2)
    first = await sink.deliver(at_once(1, b"n1"))
    await fail_buffered(scene)
    with pytest.raises(SinkLost, match="not now"):
        await sink.deliver(at_once(2, b"n2", b"n3"))
    assert scene.outsides["x"].values() == []
    assert first is not None
    assert first.is_done
    assert await sink.deliver(at_once(2, b"n2", b"n3")) is None, "the first was skipped: the error is raised once"


@pytest.mark.parametrize("come", [1, 2], ids=["more rows come", "no more rows come"])
async def test_an_epoch_whose_buffered_rows_fail_while_it_is_delivered_is_not_accepted(
    scene: SinkScene, come: int
) -> None:
    sink = await direct_sink(scene, elements=3)
    epoch = BlockByBlock(1, b"n1", b"n2")
    delivering = asyncio.create_task(sink.deliver(epoch))
    for event in epoch.go[:come]:
        event.set()
    await scene.until(lambda: sink.buffered == come)
    await fail_buffered(scene)
    for event in epoch.go:
        event.set()
    with pytest.raises(SinkLost, match="not now"):
        await delivering
    await sink.deliver(at_once(1, b"n1", b"n2"))
    await sink.flush()
    assert scene.outsides["x"].values() == [b"n1\nn2\n"]


async def test_rows_that_were_being_sent_when_their_epoch_was_voided_count_once(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await direct_sink(scene, elements=2)
    deliver, is_sending, go = Scripted.deliver, asyncio.Event(), asyncio.Event()

    async def slow(self: Scripted, outgoing: Outgoing, host: Host) -> None:
        is_sending.set()
        await go.wait()
        await deliver(self, outgoing, host)

    monkeypatch.setattr(Scripted, "deliver", slow)
    first = await sink.deliver(at_once(1, b"n1"))
    assert first is not None
    flushing = asyncio.create_task(sink.flush())
    await is_sending.wait()
    first.cancel()
    again = asyncio.create_task(sink.deliver(at_once(1, b"n1")))
    await asyncio.sleep(0)
    go.set()
    assert await again is None
    await flushing
    assert scene.outsides["x"].values() == [b"n1\n"]
