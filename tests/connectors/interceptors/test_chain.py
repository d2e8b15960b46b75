"""Chains: which raw bytes are consumed, what is buffered, and what remains if some bytes are bad."""

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.interceptors.api import BadBytes, Incoming
from penstock.connectors.interceptors.chain import IncomingChain, OutgoingChain
from penstock.connectors.interceptors.join import Joining, JoinOptions
from penstock.connectors.interceptors.length_prefixed import LengthPrefixedOptions, Prefixing, Unprefixing
from penstock.connectors.interceptors.split import SplitOptions, Splitting
from tests.connectors.interceptors.test_split import cut


def lines(**options: object) -> Splitting:
    return Splitting(SplitOptions.model_validate(options))


def prefixed(**options: object) -> Unprefixing:
    return Unprefixing(LengthPrefixedOptions.model_validate({"length_bytes": 1, **options}))


def framed(*records: bytes) -> bytes:
    return b"".join(bytes([len(record)]) + record for record in records)


def test_without_interceptors_each_piece_is_a_record() -> None:
    chain = IncomingChain()
    assert chain.feed(b"any") == [b"any"]
    assert (chain.consumed, chain.buffered, chain.finish()) == (3, 0, [])


def test_consumed_bytes_are_those_of_the_emitted_records() -> None:
    chain = IncomingChain([lines()], resumes=True, position=100)
    assert chain.feed(b"one\ntw") == [b"one"]
    assert (chain.consumed, chain.buffered) == (104, 2)
    assert chain.feed(b"o\n") == [b"two"]
    assert chain.consumed == 108


def stages() -> list[Incoming]:
    return [prefixed(), lines()]


@given(
    st.lists(st.sampled_from([b"a\n", b"bb\ncc\n", b"d", b"e\nf", b""]), max_size=12),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_a_stream_that_resumes_after_the_consumed_bytes_repeats_and_loses_nothing(
    frames: list[bytes], places: list[int]
) -> None:
    data = framed(*frames)
    whole = IncomingChain(stages())
    expected = whole.feed(data) + whole.finish()
    for stop in range(len(data) + 1):
        first = IncomingChain(stages(), resumes=True)
        found = [record for piece in cut(data[:stop], places) for record in first.feed(piece)]
        rest = IncomingChain(stages(), resumes=True, position=first.consumed)
        found += rest.feed(data[first.consumed :]) + rest.finish()
        assert found == expected


def test_bad_bytes_keep_the_records_before_them_and_every_byte_in_order() -> None:
    chain = IncomingChain([prefixed(), lines(record_bytes_max=3)])
    with pytest.raises(BadBytes) as raised:
        chain.feed(framed(b"a\nb", b"b\nlonger", b"x\n") + b"\x09part")
    assert raised.value.records == [b"a", b"bb"]
    assert raised.value.data == b"longerx\n\x09part"
    assert chain.buffered == 0


def test_bad_bytes_cut_off_an_incomplete_record_before_them() -> None:
    chain = IncomingChain([prefixed(record_bytes_max=4), lines()])
    with pytest.raises(BadBytes) as raised:
        chain.feed(framed(b"a\nb") + b"\x09too long")
    assert raised.value.records == [b"a"]
    assert raised.value.data == b"b\x09too long"


def test_at_the_end_buffered_records_are_emitted_and_partial_ones_are_bad() -> None:
    chain = IncomingChain([prefixed(), lines()])
    assert chain.feed(framed(b"a\nb")) == [b"a"]
    assert chain.finish() == [b"b"]
    assert chain.feed(framed(b"c\nd") + b"\x05") == [b"c"]
    with pytest.raises(BadBytes) as raised:
        chain.finish()
    assert (raised.value.records, raised.value.data) == ([], b"d\x05")


def test_cut_off_returns_buffered_bytes_and_no_record() -> None:
    chain = IncomingChain([lines()])
    chain.feed(b"a\nhal")
    assert chain.cut_off() == ([], b"hal")
    assert (chain.buffered, chain.finish()) == (0, [])


def test_values_pass_through_the_interceptors_in_order_with_the_number_of_values_that_end_in_each() -> None:
    chain = OutgoingChain(
        [Joining(JoinOptions(max_elements=2, max_wait_ms=500)), Prefixing(LengthPrefixedOptions(length_bytes=1))]
    )
    assert chain.feed([b"1", b"2", b"3"]) == [b"\x041\n2\n"]
    assert (chain.counts, chain.buffered, chain.wait_seconds) == ([2], 1, 0.5)
    assert chain.feed([b"4"]) == [b"\x043\n4\n"]
    assert (chain.counts, chain.buffered, chain.wait_seconds) == ([2], 0, None)
    chain.feed([b"5"])
    assert chain.flush() == [b"\x025\n"]
    assert (chain.counts, chain.buffered) == ([1], 0)


def test_two_joiners_count_the_values_that_were_fed() -> None:
    chain = OutgoingChain([Joining(JoinOptions(max_elements=2)), Joining(JoinOptions(delimiter=";", max_elements=2))])
    assert chain.feed([b"1", b"2", b"3"]) == []
    assert chain.buffered == 3
    assert chain.feed([b"4", b"5"]) == [b"1\n2\n;3\n4\n;"]
    assert (chain.counts, chain.buffered) == ([4], 1)
    assert chain.flush() == [b"5\n;"]
    assert chain.counts == [1]


def test_without_interceptors_values_leave_as_they_are() -> None:
    chain = OutgoingChain()
    assert chain.feed([b"1", b"2"]) == [b"1", b"2"]
    assert (chain.counts, chain.buffered, chain.flush()) == ([1, 1], 0, [])


def test_the_cost_per_record_does_not_grow_with_their_number() -> None:
    """With a chain of two, measured in CPU time. Quadratic work would take 256 times as long."""

    def cost(count: int) -> float:
        chain = IncomingChain([lines(), lines(delimiter=",")])
        began = process_time()
        assert len(chain.feed(b"a,\n" * count)) == count
        return process_time() - began

    few = min(cost(10_000) for _ in range(3))
    assert cost(160_000) < 80 * few
