"""Random writes and cuts, against the bytes themselves."""

from random import Random

import pytest
from crc32c import crc32c

from penstock.store.written_sums import WrittenSums

SIZE = 400_000


@pytest.mark.parametrize("seed", range(20))
def test_each_sum_is_that_of_its_bytes_and_every_written_byte_has_one(seed: int) -> None:
    random, sums, content, written = Random(seed), WrittenSums(), bytearray(SIZE), bytearray(SIZE)
    end = 0
    for _ in range(300):
        if random.random() < 0.05:
            end = random.randint(0, end)
            sums.truncate(end)
            content[end:], written[end:] = bytes(SIZE - end), bytes(SIZE - end)
            continue
        start = end if random.random() < 0.8 else random.randint(0, end)
        data = random.randbytes(random.choice((1, 100, 5000)))[: SIZE - start]
        sums.add(start, data)
        content[start : start + len(data)] = data
        written[start : start + len(data)] = b"\1" * len(data)
        end = max(end, start + len(data))
    covered = bytearray(SIZE)
    found = sums.overlapping(0, SIZE)
    for each in found:
        assert each in sums
        assert each.checksum in (None, crc32c(content[each.start : each.end]))
        assert not any(covered[each.start : each.end])
        covered[each.start : each.end] = b"\1" * (each.end - each.start)
    assert covered == written


def test_bytes_that_are_being_changed_have_no_sum() -> None:
    sums = WrittenSums()
    sums.add(0, b"first")
    sums.add(100_000, b"second")
    sums.forget(2, 3)
    assert [each.checksum for each in sums.overlapping(0, 200_000)] == [None, crc32c(b"second")]


def test_small_writes_that_follow_each_other_share_a_sum() -> None:
    sums = WrittenSums()
    for number in range(10_000):
        sums.add(number * 100, b"x" * 100)
    assert len(sums.overlapping(0, 1_000_000)) == 16
