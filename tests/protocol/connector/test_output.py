"""Columns of events become the MESSAGE frames of a sink's output."""

from array import array
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded
from penstock.protocol.connector import OUTPUT_STREAM, Decoder, Message, Use
from penstock.protocol.connector import output as compiled
from penstock.protocol.connector import output as kernel
from penstock.protocol.connector.codec import FIXED_SIZE, MESSAGE_HEAD
from penstock.protocol.connector.output import KEY_SIZE_MAX, encode_output
from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import Bytes
from tests.protocol.connector import oracle
from tests.protocol.connector.strategies import blobs, i64s
from tests.protocol.stored.events import column, name_of

both = pytest.mark.parametrize("output", [compiled, oracle], ids=name_of)

Row = tuple[int, bytes, bytes]


def encoded(output: ModuleType, rows: list[Row], first_id: int = 0, code: str = "q", **options: Any) -> bytes:
    times, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    columns = (array("q", times), column(keys, code, b"before"), column(values, code, b"more before"))
    return bytes(output.encode_output(*columns, first_id, **options))


@both
def test_a_message_is_on_stream_1_and_its_id_counts_the_payload_bytes_before_it(output: ModuleType) -> None:
    rows = [(5, b"key", b"hello"), (NO_TIME, b"", b""), (-1, b"k", b"world!"), (0, b"", b"x")]
    assert list(Decoder(Use.SINK).feed(encoded(output, rows, 2**40))) == [
        Message(OUTPUT_STREAM, 2**40, 5, b"key", b"hello"),
        Message(OUTPUT_STREAM, 2**40 + 5, 0, b"", b""),
        Message(OUTPUT_STREAM, 2**40 + 5, -1, b"k", b"world!"),
        Message(OUTPUT_STREAM, 2**40 + 11, 0, b"", b"x"),
    ]


@both
@pytest.mark.parametrize(
    ("time_us", "unit_us", "told"),
    [
        (1999, 1000, 1),
        (-1, 1000, -1),
        (-1000, 1000, -1),
        (-1001, 1000, -2),
        (-1, 1_000_000, -1),
        (2**63 - 1, 1, 2**63 - 1),
        (NO_TIME + 1, 1, NO_TIME + 1),
        (NO_TIME + 1, 1000, (NO_TIME + 1) // 1000),
        (NO_TIME, 1000, 0),
    ],
)
def test_event_times_are_rounded_down_to_their_unit(output: ModuleType, time_us: int, unit_us: int, told: int) -> None:
    (message,) = Decoder(Use.SINK).feed(encoded(output, [(time_us, b"", b"v")], unit_us=unit_us))
    assert isinstance(message, Message)
    assert message.event_time == told


@both
@pytest.mark.parametrize("code", ["i", "q"])
def test_offsets_may_have_32_bits_or_64(output: ModuleType, code: str) -> None:
    rows = [(1, b"a", b"bc"), (2, b"", b"d")]
    assert encoded(output, rows, 7, code) == encoded(oracle, rows, 7)


@both
def test_a_message_that_is_too_large_is_named_by_its_id(output: ModuleType) -> None:
    rows = [(0, b"", b"abc"), (0, b"k", b"d" * 100), (0, b"", b"e" * 1000)]
    assert encoded(output, rows[:2], 10, frame_size_max=128)
    with pytest.raises(LimitExceeded, match=r"^message 13: its frame of 128 bytes is over the limit of 127$"):
        encoded(output, rows, 10, frame_size_max=127)
    with pytest.raises(LimitExceeded, match=r"^message 113: its frame of 1027 bytes is over the limit of 128$"):
        encoded(output, rows, 10, frame_size_max=128)


@both
def test_the_largest_key_is_sent_and_a_larger_one_is_not(output: ModuleType) -> None:
    (message,) = Decoder(Use.SINK).feed(encoded(output, [(0, bytes(KEY_SIZE_MAX), b"v")]))
    assert message == Message(OUTPUT_STREAM, 0, 0, bytes(KEY_SIZE_MAX), b"v")
    with pytest.raises(LimitExceeded, match=r"^message 1: its key of 65536 bytes is over the limit of 65535$"):
        encoded(output, [(0, b"", b"v"), (0, bytes(KEY_SIZE_MAX + 1), b"")])


@both
@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 4], [-1, 0, 1]])
def test_offsets_outside_their_data_are_refused(output: ModuleType, offsets: list[int]) -> None:
    bad, good = Bytes(array("q", offsets), b"abc"), column([b"a", b"b"])
    for keys, values in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match="do not fit"):
            output.encode_output(array("q", [0, 0]), keys, values, 0)


@both
def test_columns_of_different_lengths_are_refused(output: ModuleType) -> None:
    with pytest.raises(ValueError, match="1, 2 and 2 rows"):
        output.encode_output(array("q", [0]), column([b"", b""]), column([b"", b""]), 0)


@given(st.lists(st.tuples(i64s, blobs, blobs), max_size=20), st.integers(0, 2**60), st.sampled_from((1, 1000, 10**6)))
def test_both_send_the_same_messages(rows: list[Row], first_id: int, unit_us: int) -> None:
    first, second = (encoded(output, rows, first_id, unit_us=unit_us) for output in (compiled, oracle))
    assert first == second
    received = [message for message in Decoder(Use.SINK).feed(first) if isinstance(message, Message)]
    assert [(message.key, message.payload) for message in received] == [(key, value) for _, key, value in rows]


def test_numpy_columns_that_are_not_contiguous_are_taken() -> None:
    times = np.arange(6, dtype=np.int64)[::2]
    data = encode_output(times, column([b""] * 3), column([b"v"] * 3), 0)
    received = list(Decoder(Use.SINK).feed(data))
    assert received == [Message(OUTPUT_STREAM, row, 2 * row, b"", b"v") for row in range(3)]


def test_the_kernel_knows_the_layout() -> None:
    assert (Message.tag, OUTPUT_STREAM) == (kernel.MESSAGE, kernel.STREAM)
    assert (MESSAGE_HEAD.size, FIXED_SIZE) == (kernel.HEAD, kernel.FIXED)
    assert (kernel.KEY_SIZE_MAX, kernel.NO_TIME) == (KEY_SIZE_MAX, NO_TIME)
