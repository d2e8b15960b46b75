"""Binary COPY: the kernel and plain Python give the same bytes. That PostgreSQL reads them the sink's tests show."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.postgres.copy import TIME_US_MIN, encode, message_out_of_range, plain
from penstock.protocol.stored import NO_TIME
from tests.delivery.fake_epoch import Row, block_of

kernel = pytest.importorskip("penstock.connectors.postgres.copy_kernel")

TIMES = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([NO_TIME, NO_TIME + 1, TIME_US_MIN, TIME_US_MIN - 1, 0])
ROWS = st.lists(st.builds(Row, st.binary(max_size=40), st.binary(max_size=9), TIMES), min_size=1)

PLAIN = """
import sys
sys.modules["numba"] = None
from penstock.connectors.postgres import copy as postgres_copy
assert not postgres_copy.HAS_KERNEL
"""


@given(ROWS, st.integers(0, 2**62), st.integers(0, 2**62))
def test_the_kernel_does_what_plain_python_does(rows: list[Row], first_id: int, number: int) -> None:
    block = block_of(rows, first_id)
    assert bytes(kernel.compiled(block, number)) == plain(block, number) == bytes(encode(block, number))


@given(ROWS)
def test_a_time_out_of_range_is_found(rows: list[Row]) -> None:
    bad = [
        sum(len(row.value) for row in rows[:at]) for at, row in enumerate(rows) if NO_TIME < row.time_us < TIME_US_MIN
    ]
    assert message_out_of_range(block_of(rows, 10)) == (10 + bad[0] if bad else None)


@pytest.mark.process
def test_without_numba_plain_python_is_used() -> None:
    subprocess.run([sys.executable, "-c", PLAIN], check=True)
