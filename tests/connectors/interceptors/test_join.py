"""Join: batches by number, by bytes and by time, with nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.interceptors.join import Joining, JoinOptions


def joining(**options: object) -> Joining:
    return Joining(JoinOptions.model_validate(options))


def test_a_batch_has_the_configured_number_of_values() -> None:
    tested = joining(delimiter=r"\n", max_elements=3, max_wait_ms=1000)
    assert tested.feed([b"1", b"2"]) == []
    assert (tested.buffered, tested.wait_seconds) == (2, 1.0)
    assert tested.feed([b"3", b"4", b"5", b"6", b"7"]) == [b"1\n2\n3\n", b"4\n5\n6\n"]
    assert (tested.buffered, list(tested.counts)) == (1, [3, 3])
    assert tested.flush() == [b"7\n"]
    assert tested.flush() == []


def test_the_last_delimiter_can_be_left_out() -> None:
    tested = joining(delimiter=", ", terminate=False, max_elements=2)
    assert tested.feed([b"a", b"b"]) == [b"a, b"]


def test_a_batch_is_not_longer_than_the_limit_unless_a_single_value_is() -> None:
    tested = joining(record_bytes_max=6)
    assert tested.feed([b"ab", b"cd", b"ef", b"a long one", b"g"]) == [b"ab\ncd\n", b"ef\n", b"a long one\n"]
    assert list(tested.counts) == [2, 1, 1]
    assert tested.flush() == [b"g\n"]


@given(
    st.lists(st.lists(st.binary(max_size=5).filter(lambda one: b"\n" not in one))),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_nothing_is_lost_or_out_of_order(calls: list[list[bytes]], elements: int, size: int) -> None:
    tested = joining(max_elements=elements, record_bytes_max=size)
    results: list[bytes] = []
    counts: list[int] = []
    for values in calls:
        results += tested.feed(values)
        counts += tested.counts
    results += tested.flush()
    counts += tested.counts
    assert b"".join(results) == b"".join(value + b"\n" for values in calls for value in values)
    assert [result.count(b"\n") for result in results] == counts
    assert max(counts, default=0) <= elements
    assert all(len(result) <= size or count == 1 for result, count in zip(results, counts, strict=True))
