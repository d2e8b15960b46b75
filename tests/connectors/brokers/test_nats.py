"""NATS JetStream against a real server, which is killed like the worker: every message is an event once, and every row
a message once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy

from penstock.connectors.api import Lost
from penstock.connectors.nats.connector import Nats
from penstock.connectors.nats.options import NatsOptions
from penstock.connectors.nats.sink import AFTER, MESSAGE_ID, NatsSink, RowId, Stored, parse_id
from penstock.connectors.nats.source import check_position, delivery_of, removed_between
from penstock.connectors.registry import make_connector
from penstock.connectors.sink_api import SinkLost
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.delivery.outbox.rows import Row, encode_rows
from penstock.protocol.stored.event import NO_TIME
from penstock.testing.brokers import NatsServer
from penstock.testing.frame import Frame, GivenEpoch
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.scene import killed_scene
from tests.connectors.brokers.servers import QUICKLY, need
from tests.fixtures.peers import stored as stored_before
from tests.support.ports import free_port
from tests.support.tls import CA
from tests.support.waiting import until

# What needs no server.


def test_sequences_and_times_are_read_from_the_reply_subject_of_a_message() -> None:
    assert delivery_of("$JS.ACK.ORDERS.c.1.17.5.1767355200000001000.3") == (17, 5, 1767355200000001)
    assert delivery_of("$JS.ACK.hub.acc.ORDERS.c.1.17.5.1767355200000001000.3.x") == (17, 5, 1767355200000001)


@pytest.mark.parametrize(
    ("seen", "first_kept", "next_read", "removed"),
    [(10, 1, 11, 0), (10, 11, 11, 0), (10, 15, 15, 4), (10, 15, 12, 1), (10, 5, 20, 0), (0, 4, 4, 3)],
)
def test_what_the_server_has_removed_unread_is_known_from_the_sequences(
    seen: int, first_kept: int, next_read: int, removed: int
) -> None:
    assert removed_between(seen, first_kept, next_read) == removed


def test_a_stream_that_ends_before_what_was_read_is_refused() -> None:
    check_position(7, 7, "stream S")
    with pytest.raises(Lost, match="stream S ends at sequence 6, but 7 was read"):
        check_position(7, 6, "stream S")


def test_the_ids_of_rows_show_which_of_them_are_stored() -> None:
    last = RowId("p/out", "p:1:5", 7)
    assert parse_id(str(last), "p/out") == last
    assert parse_id(str(last), "q/out") is None
    assert parse_id("something else", "p/out") is None
    assert parse_id(None, "p/out") is None
    part = [RowId("p/out", "p:1:5", row) for row in (5, 7)]
    stored = Stored.of("p:1:5", last, part)
    assert [row for row in range(10) if not stored.has(row)] == [6, 8, 9]
    assert stored.end == 8
    assert Stored.of("p:1:4", last, ()).has(100), "a later epoch is there"
    assert not Stored.of("p:1:6", last, ()).has(0)
    assert not Stored.of("p:2:5", last, ()).has(0), "after a reset, epochs are counted again"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"servers": ["nats://me:secret@a:1"]}, "without a user"),
        ({"servers": []}, "servers"),
        ({"stream": "a.b"}, "name of a JetStream stream"),
        ({"filter": "a..b"}, "expected a subject"),
        ({"subject": "a.*"}, "without wildcards"),
        ({"subject": "a.{key}", "exclusive": True}, "exclusive needs one subject"),
        ({"token": "t", "user": "u"}, "choose one of token and user"),
    ],
)
def test_options_that_cannot_work_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        make_connector("nats", {"servers": ["nats://a:4222"], "stream": "S", **config})


def test_guarantees_depend_on_the_options() -> None:
    def can(**options: Any) -> Any:
        return Nats.capabilities(NatsOptions(servers=["nats://a:4222"], stream="S", **options))

    assert (can().source, can().sink) == (Guarantee.EXACTLY_ONCE, None)
    assert can(subject="s").sink is Guarantee.AT_LEAST_ONCE
    assert can(subject="s", exclusive=True).sink is Guarantee.EXACTLY_ONCE
    assert can(event_time="arrival").own_event_times is False


# With a server.


@asynccontextmanager
async def jetstream(server: NatsServer, **connect: Any) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url, allow_reconnect=False, **connect)
    try:
        stream = client.jetstream()
        for _ in range(100):  # JetStream is ready a moment later
            with suppress(NatsError):
                await stream.account_info()
                break
            await asyncio.sleep(0.05)
        yield stream
    finally:
        await client.close()


async def publish(stream: JetStreamContext, subject: str, values: Sequence[bytes]) -> None:
    for future in [await stream.publish_async(subject, value) for value in values]:
        await future


async def messages(stream: JetStreamContext, name: str, subject: str) -> list[Msg]:
    reading = await stream.pull_subscribe(subject, stream=name, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    pending = (await reading.consumer_info()).num_pending or 0
    found: list[Msg] = []
    while len(found) < pending:
        found += await reading.fetch(1000, 5)
    await reading.unsubscribe()
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, end)]


def source_of(server: NatsServer, **options: Any) -> dict[str, Any]:
    return {"servers": [server.url], "stream": "S", "timeout": "5s", **options}


async def test_subject_headers_and_time_of_a_message_are_kept(nats_server: NatsServer, tmp_path: Path) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a.*"])
        await stream.publish("a.x", b"one", headers={"kind": "test"})
        await stream.publish("a.y", b"two")
        async with Frame(tmp_path / "data", Nats, source_of(nats_server)) as frame:
            one, two = await frame.until_stored(2)
            assert (one.event_id, one.value, one.metadata) == (
                1,
                b"one",
                {"subject": "a.x", "headers": {"kind": "test"}},
            )
            assert (two.event_id, two.value, two.metadata) == (2, b"two", {"subject": "a.y"})


async def test_a_filter_reads_its_subjects_only(nats_server: NatsServer, tmp_path: Path) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a.*"])
        for number in range(10):
            await stream.publish(f"a.{number % 2}", b"%d" % number)
        async with Frame(tmp_path / "data", Nats, source_of(nats_server, filter="a.1")) as frame:
            events = await frame.until_stored(5)
            assert [event.value for event in events] == [b"1", b"3", b"5", b"7", b"9"]
            assert [event.event_id for event in events] == [2, 4, 6, 8, 10]
            assert frame.instance.host.counts == {}


async def test_messages_that_were_removed_before_they_were_read_stop_the_source_or_are_counted(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    config = source_of(nats_server)
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a"], max_msgs=10)
        await publish(stream, "a", numbered(0, 5))
        async with Frame(tmp_path / "data", Nats, config) as frame:
            await frame.until_stored(5)
        await publish(stream, "a", numbered(5, 25))
        async with Frame(tmp_path / "data", Nats, config) as frame:
            await frame.until(lambda: "has removed 10 messages after sequence 5" in frame.instance.host.status().reason)
            assert len(await frame.events()) == 5
        async with Frame(tmp_path / "data", Nats, {**config, "on_removed": "continue"}) as frame:
            await frame.until_stored(10)
            assert await frame.values() == numbered(0, 5) + numbered(15, 25)
            assert frame.instance.host.counts == {"removed_messages": 10}


async def test_messages_that_were_deleted_one_by_one_are_counted(nats_server: NatsServer, tmp_path: Path) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a"])
        await publish(stream, "a", numbered(0, 5))
        await stream.delete_msg("S", 3)
        async with Frame(tmp_path / "data", Nats, source_of(nats_server)) as frame:
            await frame.until_stored(4)
            assert frame.instance.host.counts == {"deleted_messages": 1}


async def test_a_stream_that_was_created_again_is_read_from_its_beginning(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a"])
        await publish(stream, "a", numbered(0, 5))
        async with Frame(tmp_path / "data", Nats, source_of(nats_server)) as frame:
            await frame.until_stored(5)
            await stream.delete_stream("S")
            await frame.until(lambda: frame.instance.host.counters.failures > 0)
            await stream.add_stream(name="S", subjects=["a"])
            await publish(stream, "a", numbered(5, 7))
            await frame.until_stored(7)
            assert sorted(await frame.values()) == numbered(0, 7)


async def test_a_work_queue_and_a_missing_stream_are_refused_with_what_to_do(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with Frame(tmp_path / "data", Nats, source_of(nats_server)) as frame:
        await frame.until(lambda: "stream S at nats://" in frame.instance.host.status().reason)
        assert "does not exist" in frame.instance.host.status().reason
        async with jetstream(nats_server) as stream:
            await stream.add_stream(name="S", subjects=["a"], retention=RetentionPolicy.WORK_QUEUE)
            await frame.until(lambda: "has the retention workqueue" in frame.instance.host.status().reason)


async def test_only_new_messages_are_read_if_the_options_say_so(nats_server: NatsServer, tmp_path: Path) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a"])
        await publish(stream, "a", numbered(0, 5))
        async with Frame(tmp_path / "data", Nats, source_of(nats_server, start="new")) as frame:
            await frame.connected()
            await publish(stream, "a", numbered(5, 7))
            await frame.until_stored(2)
            assert await frame.values() == numbered(5, 7)


async def test_a_message_larger_than_a_request_is_reported(nats_server: NatsServer, tmp_path: Path) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["a"])
        await stream.publish("a", b"x" * 5000)
        async with Frame(tmp_path / "data", Nats, source_of(nats_server, fetch_bytes=1000)) as frame:
            await frame.until(lambda: "larger than fetch_bytes" in frame.instance.host.status().reason)


async def test_a_password_and_tls_are_used(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    CA.cert_pem.write_to_path(str(folder / "ca.pem"))
    CA.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    tls = f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.pem" }}'
    need(NatsServer)
    with NatsServer(folder, f'authorization {{ user: me, password: "right" }}\n{tls}', free_port) as server:
        config = source_of(server, user="me", tls={"ca": str(folder / "ca.pem")})
        async with Frame(tmp_path / "wrong", Nats, {**config, "password": "wrong"}) as frame:
            await frame.until(lambda: "cannot be reached" in frame.instance.host.status().reason)
        async with Frame(tmp_path / "right", Nats, {**config, "password": "right"}) as frame:
            await frame.until(lambda: "does not exist" in frame.instance.host.status().reason)


# The sink.


def sink_of(server: NatsServer, **options: Any) -> NatsSink:
    config = {"servers": [server.url], "stream": "S", "subject": "out", "timeout": 5.0, "exclusive": True, **options}
    return NatsSink(NatsOptions.model_validate({**config, "timeout": "5s"}), "p/out")


def epoch_of(number: int, values: Sequence[bytes]) -> GivenEpoch:
    rows = [Row(place, 0, place, NO_TIME, b"", b"", value) for place, value in enumerate(values)]
    return GivenEpoch(number, "p", encode_rows(rows), 0, sum(map(len, values)))


async def test_an_epoch_that_is_delivered_again_after_any_time_is_there_once(nats_server: NatsServer) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["out"], duplicate_window=0.1)
        sink = sink_of(nats_server)
        for number in (1, 1, 2):
            await sink.deliver(epoch_of(number, numbered(number * 10, number * 10 + 10)))
            await sink.close()
            await asyncio.sleep(0.3)  # beyond the duplicate window: the server would store it again
        found = await messages(stream, "S", "out")
        assert [one.data for one in found] == numbered(10, 30)
        assert found[0].headers == {MESSAGE_ID: "p/out:p:1:1/0", AFTER: "0", "Nats-Expected-Stream": "S"} | {
            "Nats-Expected-Last-Subject-Sequence": "0"
        }


async def test_what_is_missing_of_an_epoch_is_published_and_nothing_else(nats_server: NatsServer) -> None:
    """A crash in the middle of a part, which was stored with gaps."""
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["out", "other"], duplicate_window=0.1)
        for row in (0, 1, 3):
            await stream.publish("other", b"of somebody else")
            await stream.publish("out", b"value %d" % row, headers={MESSAGE_ID: f"p/out:p:1:0/{row}", AFTER: "0"})
        await asyncio.sleep(0.3)
        sink = sink_of(nats_server)
        await sink.deliver(epoch_of(0, numbered(0, 6)))
        await sink.close()
        assert sorted(one.data for one in await messages(stream, "S", "out")) == numbered(0, 6)


async def test_headers_that_the_first_format_has_written_continue(nats_server: NatsServer) -> None:
    """Of the epoch, the first and the third row are there."""
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["out"])
        for message in stored_before("nats-1"):
            await stream.publish("out", message["value"].encode(), headers=message["headers"])
        sink = sink_of(nats_server)
        await sink.deliver(epoch_of(8, [b"row 1", b"missing", b"row 2", b"last"]))
        await sink.close()
        found = [one.data for one in await messages(stream, "S", "out")]
        assert found == [b"row 0", b"row 1", b"row 2", b"missing", b"last"]


async def test_rows_that_the_server_never_accepts_are_refused_and_the_others_are_there_once(tmp_path: Path) -> None:
    rows = [
        Row(0, 0, 0, NO_TIME, b"a", b"", b"one"),
        Row(1, 0, 1, NO_TIME, b"a b", b"", b"a blank in its key"),
        Row(2, 0, 2, NO_TIME, b"a", b"", b"x" * 4000),
        Row(3, 0, 3, NO_TIME, b"b", b"", b"two"),
    ]
    need(NatsServer)
    with NatsServer(tmp_path, "max_payload: 4000", free_port) as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="S", subjects=["out.>"])
            sink = sink_of(server, subject="out.{key}", exclusive=False)
            for _ in range(2):
                epoch = GivenEpoch(0, "p", encode_rows(rows))
                await sink.deliver(epoch)
                await sink.close()
                assert epoch.refused == {
                    1: "with its key, 'out.a b' is not a valid subject",
                    2: "it has 4,000 bytes and up to 65 of headers, and the server accepts 4,000 (max_payload)",
                }
            assert [one.data for one in await messages(stream, "S", "out.>")] == [b"one", b"two"]


async def test_the_largest_row_that_the_server_accepts_is_published(tmp_path: Path) -> None:
    headers = {MESSAGE_ID: "p/out:p:1:0/1", "Nats-Expected-Stream": "S"}
    room = 4000 - len("NATS/1.0\r\nNats-Msg-Id: p/out:p:1:0/0\r\nNats-Expected-Stream: S\r\n\r\n")
    need(NatsServer)
    with NatsServer(tmp_path, "max_payload: 4000", free_port) as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="S", subjects=["out"])
            sink, epoch = sink_of(server, exclusive=False), epoch_of(0, [b"x" * room, b"x" * (room + 1)])
            await sink.deliver(epoch)
            await sink.close()
            assert [*epoch.refused] == [1]
            assert [len(one.data) for one in await messages(stream, "S", "out")] == [room]
        async with jetstream(server) as stream:
            with pytest.raises(NatsError):
                await stream.publish("out", b"x" * (room + 1), headers=headers)


async def test_a_row_whose_headers_alone_are_too_large_is_refused(tmp_path: Path) -> None:
    need(NatsServer)
    with NatsServer(tmp_path, "max_payload: 2000", free_port) as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="S", subjects=["out"])
            name = "p" * 2000
            sink = NatsSink(NatsOptions(servers=[server.url], stream="S", subject="out"), name)
            epoch = epoch_of(0, [b"x"])
            await sink.deliver(epoch)
            await sink.close()
            assert "it has 1 bytes and up to 2,0" in epoch.refused[0]


async def test_an_exclusive_sink_refuses_the_same_rows_when_it_gets_an_epoch_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is a part of its own. The largest that is accepted also fits at the beginning of a part."""
    monkeypatch.setattr("penstock.connectors.nats.sink.PART_ROWS_MAX", 1)
    widest = "Penstock-After: {0}\r\nNats-Expected-Last-Subject-Sequence: {0}\r\n".format("9" * 20)
    room = 4000 - len(f"NATS/1.0\r\nNats-Msg-Id: p/out:p:1:0/0\r\nNats-Expected-Stream: S\r\n{widest}\r\n")
    values = [b"x" * (room + 1), b"x" * room, b"x" * (room + 1), b"one", b"x" * (room + 1)]
    need(NatsServer)
    with NatsServer(tmp_path, "max_payload: 4000", free_port) as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="S", subjects=["out"], duplicate_window=0.1)
            for _ in range(2):
                sink, epoch = sink_of(server), epoch_of(0, values)
                await sink.deliver(epoch)
                await sink.close()
                assert [*epoch.refused] == [0, 2, 4]
                assert [one.data for one in await messages(stream, "S", "out")] == [values[1], values[3]]


async def test_a_row_that_is_stored_is_no_dead_letter_after_the_server_accepts_less(tmp_path: Path) -> None:
    values = [b"x" * 3000, b"one", b"x" * 3000]
    need(NatsServer)
    with NatsServer(tmp_path, "max_payload: 4000", free_port) as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="S", subjects=["out"])
        for more in ("max_payload: 4000", "max_payload: 2000"):
            server.kill()
            server._more = more
            server.start()
            async with jetstream(server) as stream:
                sink, epoch = sink_of(server), epoch_of(0, values)
                await sink.deliver(epoch)
                await sink.close()
                assert epoch.refused == {}
                assert [one.data for one in await messages(stream, "S", "out")] == values


async def test_an_exclusive_sink_refuses_a_subject_with_another_writer(nats_server: NatsServer) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["out"])
        sink = sink_of(nats_server)
        await sink.deliver(epoch_of(0, numbered(0, 3)))
        await stream.publish("out", b"of somebody else")
        for text in ("has received a message since", "comes from another writer"):
            with pytest.raises(SinkLost, match=text):
                await sink.deliver(epoch_of(1, numbered(3, 6)))
        await sink.close()
        shared = sink_of(nats_server, exclusive=False)
        await shared.deliver(epoch_of(1, numbered(3, 6)))
        await shared.deliver(epoch_of(1, numbered(3, 6)))  # within the duplicate window
        await shared.close()
        assert len(await messages(stream, "S", "out")) == 7


async def test_a_subject_that_no_stream_stores_is_reported(nats_server: NatsServer) -> None:
    async with jetstream(nats_server) as stream:
        await stream.add_stream(name="S", subjects=["out"])
        sink = sink_of(nats_server, subject="nowhere")
        with pytest.raises(SinkLost, match=r"no stream stores this subject|did not answer"):
            await sink.deliver(epoch_of(0, [b"x"]))
        await sink.close()


# Everything is killed.


def test_every_message_is_published_once_although_worker_and_server_are_killed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    end = {"servers": [nats_server.url], "timeout": "5s"}
    deployment = deployed(
        connector("source", "nats", config={**end, "stream": "IN"}, codec="binary", reconnect=QUICKLY),
        connector(
            "sink",
            "nats",
            config={**end, "stream": "OUT", "subject": "out", "exclusive": True},
            codec="binary",
            reconnect=QUICKLY,
        ),
        pipeline("p"),
        link("connector/source/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/sink/in"),
    )

    async def prepare() -> None:
        async with jetstream(nats_server) as stream:
            await stream.add_stream(name="IN", subjects=["in"])
            await stream.add_stream(name="OUT", subjects=["out"], duplicate_window=0.1)

    async def send(first: int, end: int) -> None:
        async with jetstream(nats_server) as stream:
            await publish(stream, "in", numbered(first, end))

    async def stored() -> int:
        async with jetstream(nats_server) as stream:
            return (await stream.stream_info("OUT")).state.messages

    async def result(count: int) -> list[bytes]:
        async with jetstream(nats_server) as stream:

            async def is_there() -> bool:
                return (await stream.stream_info("OUT")).state.messages >= count

            for _ in range(1200):
                if await is_there():
                    break
                await asyncio.sleep(0.1)
            return [one.data for one in await messages(stream, "OUT", "out")]

    asyncio.run(prepare())
    with killed_scene(tmp_path / "data", deployment) as scene:
        for round_ in range(3):
            asyncio.run(send(round_ * 500, round_ * 500 + 500))
            until(lambda least=round_ * 500: asyncio.run(stored()) > least)  # type: ignore[misc]
            if round_ == 1:
                nats_server.kill()
                nats_server.start()
            else:
                scene.kill()
        assert asyncio.run(result(1500)) == numbered(0, 1500)
