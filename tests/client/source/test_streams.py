"""What a source sends, against a worker that fails the test for whatever is not allowed."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.client import Message
from penstock.core.errors import LimitExceeded, RequestError
from tests.client.source.model_worker import ModelWorker
from tests.client.source.scripted_worker import ScriptedWorker

MakeSource = Callable[..., Any]


def numbers(last: int, first: int = 1) -> Callable[[int | None], Iterator[Message]]:
    """Starts after the point of reference, as a factory should."""

    def factory(after: int | None) -> Iterator[Message]:
        for number in range(first if after is None else after + 1, last + 1):
            yield Message(number, b"message %d" % number)

    return factory


def test_every_message_arrives_once_and_the_stream_is_done(make_source: MakeSource) -> None:
    model = ModelWorker()
    acks: list[tuple[str, int]] = []
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address, on_ack=lambda name, last: acks.append((name, last)))
        stream = source.stream("one", numbers(5000))
        source.run()
    assert model.payloads("one") == [b"message %d" % n for n in range(1, 5001)]
    assert (stream.sent, stream.first_stored, stream.acknowledged, stream.is_done) == (5000, None, 5000, True)
    assert acks[-1] == ("one", 5000)
    assert acks == sorted(set(acks))
    assert model.ended == ["one"]


def test_event_times_keys_and_plain_tuples(make_source: MakeSource) -> None:
    model = ModelWorker()
    reused = bytearray(b"reused")

    def factory(after: int | None) -> Iterator[Any]:
        yield 0, b"", -5, b"key"
        yield 3, reused
        reused[:] = b"gone!!"
        yield (2**64 - 2, memoryview(b"last"), 7)

    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        source.stream("s", factory, stream_id=17)
        source.run()
    found = [(m.stream_id, m.message_id, m.event_time, m.key, m.payload) for m in model.stored["s"]]
    assert found == [
        (17, 0, -5, b"key", b""),
        (17, 3, 0, b"", b"reused"),
        (17, 2**64 - 2, 7, b"", b"last"),
    ]


def test_a_second_run_sends_only_what_is_new(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        for last, sent in ((10, 10), (10, 0), (25, 15)):
            source = make_source(worker.address)
            stream = source.stream("s", numbers(last))
            source.run()
            assert (stream.sent, stream.acknowledged) == (sent, last)
    assert model.ids("s") == list(range(1, 26))


def test_what_is_stored_is_skipped_when_the_factory_can_only_start_earlier(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        for last in (1000, 3000):
            source = make_source(worker.address)
            stream = source.stream("s", lambda after, last=last: [(n, b"x") for n in range(last)])
            source.run()
    assert stream.first_stored == 999
    assert model.ids("s") == list(range(3000))


def test_a_stream_without_messages_ends(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        stream = source.stream("empty", lambda after: ())
        source.run()
    assert stream.is_done
    assert stream.acknowledged is None
    assert model.ended == ["empty"]


@pytest.mark.parametrize("credit", [1, 2, 7])
def test_few_credits_are_never_overspent_and_streams_take_turns(make_source: MakeSource, credit: int) -> None:
    model = ModelWorker(credit=credit)
    with ScriptedWorker(model, receive_bytes=7) as worker:
        source = make_source(worker.address)
        for name in "abc":
            source.stream(name, numbers(60))
        source.run()
    for name in "abc":
        assert model.ids(name) == list(range(1, 61))
    if credit == 1:  # while all three have something to send: a thread that starts late has no turn before
        start = max(model.order.index(name) for name in "abc")
        end = min(len(model.order) - 1 - model.order[::-1].index(name) for name in "abc")
        turns = [model.order[start:end].count(name) for name in "abc"]
        assert max(turns) - min(turns) <= 5


def test_a_worker_that_writes_byte_by_byte_is_understood(make_source: MakeSource) -> None:
    model = ModelWorker(piece_bytes=1)
    with ScriptedWorker(model, receive_bytes=1) as worker:
        source = make_source(worker.address)
        source.stream("s", numbers(50))
        source.run()
    assert model.ids("s") == list(range(1, 51))


def test_large_messages_go_through_whole(make_source: MakeSource) -> None:
    model = ModelWorker()
    payloads = [bytes([n]) * (3 << 20) for n in range(4)]
    with ScriptedWorker(model, receive_bytes=4096) as worker:
        source = make_source(worker.address)
        source.stream("s", lambda after: list(enumerate(payloads)))
        source.run()
    assert model.payloads("s") == payloads


@pytest.mark.parametrize("seed", range(8))
def test_connections_cut_anywhere_lose_nothing_and_repeat_nothing(make_source: MakeSource, seed: int) -> None:
    randomly = random.Random(seed)
    cuts = [randomly.randrange(40, 20_000) for _ in range(12)]
    model = ModelWorker(
        credit=randomly.choice([1, 5, 500]),
        ack_every=randomly.choice([1, 10]),
        cut_after=lambda: cuts.pop() if cuts else None,
    )
    acks: dict[str, list[int]] = {"a": [], "b": []}
    with ScriptedWorker(model, receive_bytes=randomly.choice([100, 65536])) as worker:
        source = make_source(worker.address, on_ack=lambda name, last: acks[name].append(last))
        source.stream("a", numbers(2000))
        source.stream("b", lambda after: [(n, b"x" * n) for n in range(300)])
        source.run()
    assert model.payloads("a") == [b"message %d" % n for n in range(1, 2001)]
    assert model.payloads("b") == [b"x" * n for n in range(300)]
    assert [acks[name][-1] for name in "ab"] == [2000, 299]
    for told in acks.values():
        assert told == sorted(set(told))


def test_a_none_means_nothing_now_and_the_others_continue(make_source: MakeSource) -> None:
    model = ModelWorker()

    def slow(after: int | None) -> Iterator[Any]:
        while len(model.stored["quick"]) < 3000:
            yield None
        yield 1, b"at last"

    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        source.stream("slow", slow)
        source.stream("quick", numbers(3000))
        source.run()
    assert model.ids("slow") == [1]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([(1, b""), (1, b"")], "id 1 after 1"),
        ([(-1, b"")], "id -1"),
        ([(2**64 - 1, b"")], "id 18446744073709551615"),
        ([(1, "text")], "str instead of bytes"),
        ([(1, b"", 0, "key")], "str instead of bytes"),
        ([b"just bytes"], "is not a message"),
        ([17], "is not a message"),
        ([("1", b"")], "is not a message"),
        ([(1, b"", 2**63)], "MESSAGE 1"),
        ([(1, b"", 0, b"k" * 70_000)], "MESSAGE 1"),
        ([(1, b"x" * (5 << 20))], "over the limit"),
    ],
)
def test_a_message_that_cannot_be_sent_is_an_error_that_the_worker_receives(
    make_source: MakeSource, items: list[Any], text: str
) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        source.stream("s", lambda after: items)
        with pytest.raises(RequestError, match=text):
            source.run()
    assert len(model.errors) == 1
    assert text in model.errors[0]


def test_what_does_not_fit_is_refused_before_anything_is_sent(make_source: MakeSource) -> None:
    source = make_source("127.0.0.1")
    with pytest.raises(RequestError, match="no streams"):
        source.run()
    for options in ({"source": "x" * 70_000}, {"cookie": b"x" * 70_000}, {"program": "x" * 70_000}):
        with pytest.raises(LimitExceeded):
            make_source("127.0.0.1", **options)
    with pytest.raises(LimitExceeded):
        source.stream("x" * 70_000, numbers(1))
    with pytest.raises(RequestError):
        source.stream("s", numbers(1), stream_id=2**64)
    source.stream("s", numbers(1), stream_id=4)
    for name, stream_id in (("s", 5), ("t", 4)):
        with pytest.raises(RequestError, match="same name or id"):
            source.stream(name, numbers(1), stream_id=stream_id)
