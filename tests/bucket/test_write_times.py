from penstock.bucket.write_times import LARGE_BYTES, LARGE_FACTOR, WriteTimes
from penstock.store.log_object import OBJECT_BYTES_MAX

MIB = 1 << 20
BULKY = 8 * MIB


def slowed(times: WriteTimes, count: int) -> WriteTimes:
    for _ in range(count):
        times.timed_out(BULKY, times.factor(BULKY))
    return times


def test_each_time_out_doubles_the_time_up_to_that_of_large_objects() -> None:
    times = WriteTimes(30.0)
    assert [slowed(times, 1).factor(BULKY) for _ in range(5)] == [2, 4, 8, LARGE_FACTOR, LARGE_FACTOR]
    assert times.factor(MIB) == 1
    assert times.factor(LARGE_BYTES + 1) == LARGE_FACTOR


def test_writes_of_other_sizes_change_nothing() -> None:
    times = WriteTimes(30.0)
    for size in (MIB, LARGE_BYTES + 1):
        times.timed_out(size, times.factor(size))
    assert times.factor(BULKY) == 1
    slowed(times, 1)
    for size in (MIB, LARGE_BYTES + 1):
        times.done(size, 0.01)
    assert times.factor(BULKY) == 2


def test_fast_writes_return_to_the_usual_time() -> None:
    times = slowed(WriteTimes(30.0), 4)
    factors = []
    for _ in range(4):
        times.done(BULKY, 0.1)
        factors.append(times.factor(BULKY))
    assert factors == [5, 2, 1, 1]


def test_a_slow_line_keeps_its_time() -> None:
    """2 MiB in 5 s are 17 MiB in 42 s."""
    times = slowed(WriteTimes(30.0), 1)
    times.done(2 * MIB, 5.0)
    assert times.factor(LARGE_BYTES) == 2
    slowed(times, 2)
    times.done(2 * MIB, 5.0)
    times.done(2 * MIB, 5.0)
    assert times.factor(LARGE_BYTES) == 4, "half of 120 s is enough, half of 60 s is not"


def test_a_full_object_of_the_log_is_not_large() -> None:
    assert WriteTimes(30.0).factor(OBJECT_BYTES_MAX + (64 << 10)) == 1
