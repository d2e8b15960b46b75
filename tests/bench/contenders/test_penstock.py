"""The bytes that our driver sends, against the table of the segment protocol, and what it reads."""

import socket
import struct

import pytest

from bench import events
from bench.contenders import penstock as frames
from bench.contenders.penstock import SegmentLink, SegmentReader
from bench.harness import BenchmarkFailed

WRITER = bytes(range(16))


def data_appended(number: int) -> bytes:
    return frames.frame(7, WRITER, struct.pack(">qqqq", number, 0, number, number * events.STORED_BYTES))


def link(count: int = 3) -> SegmentLink:
    with socket.socket() as sock:
        return SegmentLink(sock, WRITER, events.block(count))


def test_hello_offers_versions_5_to_17() -> None:
    assert frames.hello().hex(" ", 4) == "ffffff81 00000008 00000011 00000005"


def test_create_segment() -> None:
    expected = (
        "00000014 0000001b"  # type 20, 27 bytes
        "0000000000000007"  # request
        "0002 6162"  # name
        "00000000 00"  # rate, scale type
        "0000"  # token
        "0000000000000000"  # rollover
    )
    assert frames.create_segment(7, "ab") == bytes.fromhex(expected)


def test_setup_append() -> None:
    expected = "00000001 0000001e0000000000000007" + WRITER.hex() + "0002 61620000"
    assert frames.setup_append(7, WRITER, "ab") == bytes.fromhex(expected)


def test_a_batch_is_a_block_of_events_and_its_end() -> None:
    begin, end = link(count=3).batch()
    block = 3 * 108
    assert begin[:24] == struct.pack(">ii", 3, 16 + block) + WRITER
    assert begin[24:] == events.block(3)
    # writer, size of whole events, no further data, events, last event number, request
    assert end == struct.pack(">ii", 4, 44) + WRITER + struct.pack(">iiiqq", block, 0, 3, 3, 3)


def test_event_numbers_continue_from_batch_to_batch_while_the_block_stays_the_same() -> None:
    writer = link(count=3)
    first, second = writer.batch(), writer.batch()
    assert first[0] is second[0]
    assert second[1] == frames.end_block(WRITER, 3 * 108, count=3, last=6)


def test_an_event_has_its_header_in_the_segment() -> None:
    block = events.block(2)
    assert len(block) == 216
    assert block[:8] == block[108:116] == struct.pack(">ii", 0, 100)


def test_read_segment() -> None:
    expected = "00000009 0000001a0002 61620000000000000010 0000040000000000000000000010"
    assert frames.read_segment("ab", 16, 1024) == bytes.fromhex(expected)


def test_one_acknowledgement_may_be_for_several_batches() -> None:
    assert link().acked(data_appended(9)) == 9


def test_acknowledgements_are_counted_once_however_they_are_cut() -> None:
    writer, counted = link(), 0
    for byte in data_appended(3) + data_appended(6) + data_appended(12):
        counted += writer.acked(bytes([byte]))
    assert counted == 12


def test_any_other_message_ends_the_benchmark() -> None:
    with pytest.raises(BenchmarkFailed, match="message 51"):
        link().acked(frames.frame(51, b"sealed"))


def info(size: int) -> bytes:
    return frames.frame(12, bytes(8), frames.text("s"), b"\1\0\0", struct.pack(">qqq", 0, size, 0))


def segment_read(offset: int, data: bytes) -> bytes:
    rest = struct.pack(">q??i", offset, False, False, len(data)) + data + struct.pack(">q", offset)
    return frames.frame(10, frames.text("s"), rest)


def test_a_reader_learns_the_size_first_and_takes_what_comes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(info(size=1000) + segment_read(0, b"abcd") + segment_read(4, b"ef"))
        reader = SegmentReader(ours, "s")
        into = memoryview(bytearray(100))
        assert reader.size == 1000
        assert reader.read(0, into) == 4
        assert reader.read(4, into[4:]) == 2
        assert bytes(into[:6]) == b"abcdef"


def test_a_reader_that_gets_nothing_reports_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(info(size=1000) + segment_read(0, b""))
        with pytest.raises(BenchmarkFailed, match="no bytes at 0 of 1000"):
            SegmentReader(ours, "s").read(0, memoryview(bytearray(10)))
