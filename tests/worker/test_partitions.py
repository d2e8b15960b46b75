"""A source with two partitions, in processes of a host that are killed while programs send."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.cluster.places import Kind, Places, Thing
from penstock.core.errors import NoSuchSegment, RequestError
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from tests.client.source.stored import stored_messages
from tests.support.copying_driver import Driver
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import Sending
from tests.worker.hosts import Hosts, hosts, kill

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SOURCE = "orders"


class Home:
    """Of the pipeline: the process of its shard, whose ports change."""

    def __init__(self, made: Hosts) -> None:
        self._made = made

    def _address(self, port: str) -> str:
        shard = Places(open_bucket(self._made.url)).get(Thing(Kind.PIPELINE, "copy"))
        return str(self._made.cluster()["shards"][shard]["addresses"].get(port, "127.0.0.1:1"))

    @property
    def http(self) -> str:
        return self._address("http")

    @property
    def segment(self) -> str:
        return self._address("segment")

    def output(self) -> list[bytes]:
        with SegmentClient(self.segment) as client:
            return [bytes(event.data) for event in client.events("pipeline/copy/out")]


class OneStream(Sending):
    """A program with one stream, whose messages name it."""

    def __init__(self, seeds: str, number: int) -> None:
        super().__init__(seeds, 0, SOURCE)
        # On a busy machine a process takes longer to start than programs usually wait for a stream.
        self._source = Source(
            seeds, source=SOURCE, on_ack=self._acked, poll_seconds=0.005, retry_seconds=2 * SECONDS_MAX
        )
        self._number = number
        self._streams = [self._source.stream(f"stream {number}", self._messages)]

    def _messages(self, after: int | None) -> Iterator[Message | None]:
        for one in super()._messages(after):
            yield None if one is None else Message(one.id, self.payload(one.id), one.event_time)

    def payload(self, message_id: int) -> bytes:
        return b"%d of stream %d" % (message_id, self._number)

    @property
    def stream_id(self) -> int:
        return self._streams[0].stream_id


def shards_of(made: Hosts) -> tuple[int, ...]:
    return Places(open_bucket(made.url)).find_partitions(Thing(Kind.SOURCE, SOURCE))


def stored(made: Hosts) -> list[dict[int, list[int]]]:
    """By partition: stream → the ids of its messages, in order."""
    found, shards = [], made.settle()["shards"]
    for number, shard in enumerate(shards_of(made)):
        name = SOURCE if not number else f"{SOURCE}#{number}"
        messages = stored_messages(shards[shard]["addresses"]["segment"], name)
        found.append({stream_id: [one.id for one in ones] for stream_id, ones in messages.items()})
    return found


def kill_shard(made: Hosts, shard: int) -> None:
    """The host has written in its log which process serves it."""
    started = re.findall(rf"shard {shard}: process (\d+) is started", made.said())
    kill(int(started[-1]))


@contextmanager
def copying(made: Hosts) -> Iterator[Home]:
    """A pipeline that reads the source, all partitions of it."""
    home = Home(made)
    driver = Driver(home, [SOURCE])
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield home
    finally:
        driver.is_over.set()
        thread.join()


def is_registered(home: Home) -> bool:
    with closing(CoordinatorClient(home.http, 5)) as client:
        return any(one.name == "copy" for one in client.pipelines())


def test_every_message_is_read_once_and_in_order_although_partitions_and_the_registry_are_killed(
    tmp_path: Path,
) -> None:
    options = ("--partitions", f"{SOURCE}=2", "--retention", "keep")  # to compare what is stored in the end
    with hosts(tmp_path, 2, options=options) as made, ExitStack() as stack:
        home = stack.enter_context(copying(made))
        until(lambda: is_registered(home), made.said)
        programs: list[OneStream] = []
        while not programs or not all(stored(made)):  # programs get partitions in turn
            assert len(programs) < 10
            programs.append(stack.enter_context(closing(OneStream(made.seeds, len(programs)))))
            programs[-1].start()
        with CoordinatorClient(f"127.0.0.1:{made.all[0].http_port}", 5) as client:
            assert {SOURCE, f"{SOURCE}#1"} <= client.status().sources.keys()
        for number in (1, 0):
            kill_shard(made, shards_of(made)[number])
            for one in programs:
                one.wait_for_acks()
        acknowledged = {one: next(iter(one.acknowledged_ids().values())) for one in programs}
        copied = {*home.output()}  # read afterwards: an acknowledgement is never ahead of the pipeline
        assert all(one.payload(at) in copied for one, last in acknowledged.items() for at in range(last + 1))
        last = {one: one.finish()[one.stream_id] for one in programs}
        found, output = stored(made), home.output()
        for one, at in last.items():
            (ids,) = [streams[one.stream_id] for streams in found if one.stream_id in streams]
            assert ids == list(range(at + 1)), "each message is stored once, in one partition"
            own = [payload for payload in output if payload.endswith(one.payload(0)[1:])]
            assert own == [one.payload(number) for number in range(at + 1)], "and read once, in order"


def test_an_application_declares_a_source_with_partitions(tmp_path: Path) -> None:
    spec = ConnectorSpec(
        name=SOURCE, id=SOURCE, instance="01", type="connector-protocol", partitions=2, max_disorder_us=5_000_000
    )
    with hosts(tmp_path, 2) as made, ExitStack() as stack:
        host = f"127.0.0.1:{made.all[0].http_port}"
        client = stack.enter_context(CoordinatorClient(host, 5))
        application = stack.enter_context(ApplicationClient(host, 5))
        application.apply(Deployment(connectors={SOURCE: spec}))
        with pytest.raises(RequestError, match="has 2 partitions, not 1, and their number never changes"):
            application.apply(Deployment(connectors={SOURCE: replace(spec, partitions=1)}))
        with pytest.raises(RequestError, match="has events in other shards, where it cannot be paused"):
            application.pause(SOURCE)
        programs: list[OneStream] = []
        while not programs or not all(stored(made)):
            assert len(programs) < 10
            programs.append(stack.enter_context(closing(OneStream(made.seeds, len(programs)))))
            programs[-1].start()
        sources = client.status().sources
        assert [sources[name].max_disorder_seconds for name in (SOURCE, f"{SOURCE}#1")] == [5, 5]
        assert client.declare_watermark(SOURCE, 1) == len(programs)
        names = [f"stream {number}" for number in range(len(programs))]
        assert client.stream_names(SOURCE, [one.stream_id for one in programs]) == names
        for one in programs:
            one.finish()
        client.end_source(SOURCE)
        sources = client.status().sources
        assert all(sources[name].has_finished for name in (SOURCE, f"{SOURCE}#1"))


def test_partitions_need_as_many_shards(tmp_path: Path) -> None:
    with hosts(tmp_path, 1, options=("--partitions", f"{SOURCE}=2")) as made:
        program = OneStream(made.seeds, 0)
        with closing(program):
            program._thread.start()
            until(lambda: "is to have 2 partitions, and the cluster has only 1 shards" in made.said(), made.said)
            made.add(1)
            program.wait_for_acks()
        assert len(set(shards_of(made))) == 2
        with SegmentClient(made.all[0].address) as client, pytest.raises(NoSuchSegment):
            client.info(f"connector/{SOURCE}#7/0")  # there is no such partition
