"""Binary COPY: the kernel writes the same bytes as plain Python. The sink's tests show that PostgreSQL reads them."""

from struct import Struct

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.postgres.copy_kernel import compiled
from penstock.connectors.postgres.sink import EPOCH_US, HEADER, OUT_OF_RANGE, TIME_US_MIN, TRAILER, message_out_of_range
from penstock.connectors.sink_api import Block
from penstock.protocol.stored import NO_TIME
from tests.delivery.fake_epoch import Row, block_of

TIMES = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([NO_TIME, NO_TIME + 1, TIME_US_MIN, TIME_US_MIN - 1, 0])
ROWS = st.lists(st.builds(Row, st.binary(max_size=40), st.binary(max_size=9), TIMES), min_size=1)

NUMBERS = Struct(">hiqiq")
"""The count of fields, and the two numbers, each with its length."""
TIME = Struct(">iq")
LENGTH = Struct(">i")


def plain(block: Block, number: int) -> bytes:
    parts, message_id = [HEADER], block.first_id
    for time, key, value in zip(block.times.tolist(), block.keys.rows(), block.values.rows(), strict=True):
        parts.append(NUMBERS.pack(5, 8, number, 8, message_id))
        parts.append(LENGTH.pack(-1) if time == NO_TIME else TIME.pack(8, _since_2000(time)))
        parts += (LENGTH.pack(len(key)), key, LENGTH.pack(len(value)), value)
        number += 1
        message_id += len(value)
    return b"".join([*parts, TRAILER])


def _since_2000(time: int) -> int:
    return time - EPOCH_US if time >= TIME_US_MIN else OUT_OF_RANGE


@given(ROWS, st.integers(0, 2**62), st.integers(0, 2**62))
def test_the_kernel_writes_the_same_bytes_as_plain_python(rows: list[Row], first_id: int, number: int) -> None:
    block = block_of(rows, first_id)
    assert bytes(compiled(block, number)) == plain(block, number)


@given(ROWS)
def test_a_time_out_of_range_is_detected(rows: list[Row]) -> None:
    bad = [
        sum(len(row.value) for row in rows[:at]) for at, row in enumerate(rows) if NO_TIME < row.time_us < TIME_US_MIN
    ]
    assert message_out_of_range(block_of(rows, 10)) == (10 + bad[0] if bad else None)
