"""What the peers' drivers send, and how they count what comes back."""

import json
import socket

import pytest

from bench import events
from bench.contenders.bare import BareLink
from bench.contenders.nats import Replies, atomic_batch
from bench.contenders.redis import RedisLink, command
from bench.harness import BenchmarkFailed


def redis_link(count: int = 2) -> RedisLink:
    with socket.socket() as sock:
        return RedisLink(sock, b"s", count)


def bare_link(count: int = 2) -> BareLink:
    with socket.socket() as sock:
        return BareLink(sock, events.block(count))


def test_a_redis_command() -> None:
    assert command(b"XLEN", b"s") == b"*2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n"


def test_a_pipeline_is_one_buffer_of_commands() -> None:
    (pipeline,) = redis_link(count=100).batch()
    assert pipeline.count(b"XADD") == 100


def test_redis_replies_are_counted_however_they_are_cut() -> None:
    link = redis_link()
    replies = b"$3\r\n1-1\r\n$3\r\n1-2\r\n$4\r\n1-10\r\n"
    assert sum(link.acked(bytes([byte])) for byte in replies) == 3


@pytest.mark.parametrize("before", [b"", b"$3\r\n1-1\r\n"])
def test_a_redis_error_ends_the_benchmark(before: bytes) -> None:
    with pytest.raises(BenchmarkFailed, match="MISCONF"):
        redis_link().acked(before + b"-MISCONF no disk\r\n")


def test_an_atomic_batch_numbers_its_messages_and_the_last_commits() -> None:
    batch = atomic_batch("bench.0", "_INBOX.0", "id", [b"a", b"b"])
    first, second = batch.split(b"HPUB ")[1:]
    assert first.startswith(b"bench.0 ")
    assert b"Nats-Batch-Id:id\r\nNats-Batch-Sequence:1\r\n\r\na\r\n" in first
    assert second.startswith(b"bench.0 _INBOX.0 ")
    assert b"Nats-Batch-Sequence:2\r\nNats-Batch-Commit:1\r\n\r\nb\r\n" in second


def test_nats_replies_are_found_among_other_lines_however_they_are_cut() -> None:
    ack = json.dumps({"stream": "S", "count": 1000}).encode()
    stream = b"INFO {}\r\nMSG i 1 %d\r\n%s\r\nPING\r\nMSG i 1 %d\r\n%s\r\n" % (len(ack), ack, len(ack), ack)
    replies = Replies()
    found = [reply for byte in stream for reply in replies.receive(bytes([byte]))]
    assert [reply["count"] for reply in found] == [1000, 1000]


def test_a_nats_error_ends_the_benchmark() -> None:
    with pytest.raises(BenchmarkFailed, match="Maximum Payload"):
        Replies().receive(b"-ERR 'Maximum Payload Violation'\r\n")


def test_the_bare_loop_acknowledges_bytes_of_which_whole_events_count() -> None:
    link = bare_link()
    counts = [107, 108, 250, 324]
    assert [link.acked(count.to_bytes(8)) for count in counts] == [0, 1, 1, 1]


def test_the_last_of_several_counts_is_the_total() -> None:
    link = bare_link()
    assert link.acked((108).to_bytes(8) + (324).to_bytes(8) + b"\0\0\0") == 3
    assert link.acked((432).to_bytes(8)[3:]) == 1
