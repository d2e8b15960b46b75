"""Every chain of up to three interceptors: what one side writes, the other reads, however the bytes are cut."""

import re
from collections import deque
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.connectors.interceptors import records
from penstock.connectors.interceptors.api import BadBytes, Rejected
from penstock.connectors.interceptors.chain import IncomingChain
from penstock.connectors.registry import INTERCEPTORS, make_chains
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.interceptors.pairs import (
    COLLECTED,
    CUTTING,
    OF_RECORDS,
    OF_TEXT,
    TRANSFORMING,
    Pair,
    received,
    sent,
)
from tests.connectors.interceptors.test_split import cut

ANY = [*CUTTING, *TRANSFORMING, *OF_RECORDS, *COLLECTED, *OF_TEXT]


def is_valid(pairs: list[Pair]) -> bool:
    """Read from a stream of bytes, from the last to the first."""
    if any(one.joins for one in pairs[1:]):
        return False  # what it has joined is not cut again
    if any(one.needs_base64 and (at == 0 or pairs[at - 1].out.type != "base64") for at, one in enumerate(pairs)):
        return False
    framed = False
    for one in reversed(pairs):
        if (one.needs_records and not framed) or (one.joins and framed):
            return False
        framed = framed or one.cuts
    return True


def kinds(pairs: list[Pair]) -> tuple[str, ...]:
    return tuple(one.out.type for one in pairs)


KINDS = sorted(
    {kinds(list(chain)) for length in (1, 2, 3) for chain in product(ANY, repeat=length) if is_valid([*chain])}
)
BY_KIND = {kind: [one for one in ANY if one.out.type == kind] for kind in {one.out.type for one in ANY}}


def values_for(pairs: list[Pair]) -> st.SearchStrategy[list[bytes]]:
    limits = [one.bytes_max for one in pairs if one.bytes_max is not None]
    if limits:
        return st.lists(st.binary(max_size=min(limits)), max_size=3)
    return st.lists(st.binary(max_size=80) | st.binary(min_size=1, max_size=3).map(lambda one: one * 90), max_size=5)


@pytest.mark.parametrize("names", KINDS, ids="-".join)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_every_chain_round_trips_under_arbitrary_chopping(names: tuple[str, ...], data: st.DataObject) -> None:
    pairs = data.draw(st.tuples(*(st.sampled_from(BY_KIND[name]) for name in names)).map(list).filter(is_valid))
    values = data.draw(values_for(pairs))
    if "collect" in names:
        assume(values != [b""])  # which is nothing, as no value is
    raw = b"".join(sent(pairs, values))
    pieces = cut(raw, data.draw(st.lists(st.integers(0, max(1, len(raw))), max_size=8)))
    found = received(pairs, pieces)
    if any(one.cuts for one in pairs):
        assert found == values
    else:
        assert b"".join(found) == b"".join(values)


BEHIND_FRAMES = [
    InterceptorSpec(type="split", config={"delimiter": ","}),
    InterceptorSpec(type="split", config={"delimiter": ",", "skip_empty": False, "separates": True}),
    InterceptorSpec(type="split", config={"delimiter": ",", "unterminated": "dead-letter"}),
    InterceptorSpec(type="collect", config={"delimiter": ","}),
    InterceptorSpec(type="length-prefixed", config={"length_bytes": 1}),
    InterceptorSpec(type="base64"),
    InterceptorSpec(type="remove-empty"),
]


def results(
    chain: IncomingChain, pieces: list[bytes], *, is_cut_off: bool = False
) -> tuple[list[bytes], bytes, list[Rejected]]:
    """All records, the bytes of a dead letter, and what was rejected."""
    found: list[bytes] = []
    left = deque(pieces)
    try:
        while left:
            found += chain.feed(left.popleft())
        if is_cut_off:
            whole, rest = chain.cut_off()
            return found + whole, rest, chain.take_rejected()
        found += chain.finish()
    except BadBytes as bad:
        return found + bad.records, b"".join((bad.data, *left)), chain.take_rejected()
    return found, b"", chain.take_rejected()


@given(
    st.lists(st.sampled_from(BEHIND_FRAMES), max_size=2),
    st.lists(st.text("a,\1=", max_size=6).map(str.encode), max_size=5),
    st.sampled_from([b"", b"\x05xy", b"\x09too long"]),
    st.lists(st.integers(0, 50), max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_bad_bytes_are_a_dead_letter_with_a_record_that_they_cut_off_and_nothing_else(
    behind: list[InterceptorSpec], frames: list[bytes], bad: bytes, places: list[int]
) -> None:
    """Whatever stands behind the framing, and holds records back."""
    framing = InterceptorSpec(type="length-prefixed", config={"length_bytes": 1, "record_bytes_max": 8})
    chains = make_chains([framing, *behind], [])
    whole = b"".join(bytes([len(frame)]) + frame for frame in frames)
    records, rest, rejected = results(chains.incoming(), [whole], is_cut_off=bool(bad))
    assert results(chains.incoming(), cut(whole + bad, places)) == (records, rest + bad, rejected)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_message_round_trips_where_a_connector_sends_whole_ones(data: st.DataObject) -> None:
    one_by_one = [*TRANSFORMING, *OF_RECORDS[:-1]]
    pairs = data.draw(st.lists(st.sampled_from(one_by_one), min_size=1, max_size=3))
    values = data.draw(st.lists(st.binary(max_size=300), max_size=5))
    assert received(pairs, sent(pairs, values), messages=True) == values


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_compressed_stream_that_resumes_repeats_and_loses_nothing(data: st.DataObject) -> None:
    back = [data.draw(st.sampled_from(TRANSFORMING)).back for _ in range(data.draw(st.integers(1, 2)))]
    outs = {(one.back.type, str(one.back.config)): one for one in TRANSFORMING}
    pairs = [outs[one.type, str(one.config)] for one in reversed(back)]
    lines = data.draw(st.lists(st.sampled_from([b"a\n", b"bb\ncc\n", b"d", b"\n"]), max_size=8))
    raw = b"".join(sent(pairs, lines))
    chains = make_chains([*back, InterceptorSpec(type="split")], [])
    expected = [line for line in b"".join(lines).split(b"\n") if line]
    stop = data.draw(st.integers(0, len(raw)))
    first = chains.incoming(resumes=True)
    found = [
        record for piece in cut(raw[:stop], data.draw(st.lists(st.integers(0, 60)))) for record in first.feed(piece)
    ]
    rest: IncomingChain = chains.incoming(resumes=True, position=first.consumed)
    assert rest.is_transformed
    found += rest.feed(raw) + rest.finish()
    assert found == expected
    assert rest.consumed == len(b"".join(lines))


def test_every_interceptor_is_in_a_round_trip_or_has_no_inverse() -> None:
    tested = {spec.type for one in ANY for spec in (one.out, one.back)}
    assert {*INTERCEPTORS.names()} - tested == {*ONE_WAY}


# Those without an inverse, between others, as what they are meant to do.

ONE_WAY: dict[str, tuple[dict[str, Any], Callable[[list[bytes]], list[bytes]]]] = {
    "remove-empty": ({"blank": True}, lambda records: [record for record in records if record.strip()]),
    "regex-extract": (
        {"pattern": "[a-c]+", "missing": "drop"},
        lambda records: [found[0] for record in records if (found := re.search(rb"[a-c]+", record))],
    ),
    "ingest-timestamp": (
        {"form": "number", "unit": "s", "separator": "|"},
        lambda records: [b"%d|%s" % (NOW_SECONDS, record) for record in records],
    ),
}
NOW_SECONDS = 1_700_000_000
BEFORE: list[list[Pair]] = [[one] for one in CUTTING]
BEFORE += [[one, framing] for one in (*TRANSFORMING, *OF_RECORDS) for framing in CUTTING if framing.bytes_max is None]


@pytest.mark.parametrize(
    "names", [names for length in (1, 2) for names in product(ONE_WAY, repeat=length)], ids="-".join
)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_chains_with_what_has_no_inverse_do_as_the_model(names: tuple[str, ...], data: st.DataObject) -> None:
    """Behind a framing, and behind what was done to each record before it."""
    pairs = data.draw(st.sampled_from([one for one in BEFORE if len(one) + len(names) <= 3]))
    values = data.draw(st.lists(st.text("abcx \n", max_size=6).map(str.encode), max_size=5))
    raw = b"".join(sent(pairs, values))
    specs = [one.back for one in reversed(pairs)]
    specs += [InterceptorSpec(type=name, config=ONE_WAY[name][0]) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records.stamp, "__defaults__", (lambda: NOW_SECONDS * 1_000_000_000 + 999,))
        chain = make_chains(specs, []).incoming()
    pieces = cut(raw, data.draw(st.lists(st.integers(0, max(1, len(raw))), max_size=8)))
    found = [record for piece in pieces for record in chain.feed(piece)] + chain.finish()
    expected = values
    for name in names:
        expected = ONE_WAY[name][1](expected)
    assert found == expected


@given(
    st.lists(st.binary(max_size=6).filter(lambda one: b"\r\n" not in one and not one.endswith(b"\r")), min_size=1),
    st.lists(st.integers(0, 100)),
    st.booleans(),
)
def test_joined_values_are_split_again_and_a_last_empty_one_is_kept(
    values: list[bytes], places: list[int], terminate: bool
) -> None:
    join = InterceptorSpec(type="join", config={"delimiter": r"\r\n", "terminate": terminate, "max_elements": 100_000})
    split = {"delimiter": r"\r\n", "skip_empty": False, "separates": not terminate}
    out = make_chains([], [join]).outgoing()
    (raw,) = out.feed(values) + out.flush()
    chain = make_chains([InterceptorSpec(type="split", config=split)], []).incoming()
    found = [record for piece in cut(raw, places) for record in chain.feed(piece)] + chain.finish()
    assert found == (values if terminate or raw else [])


def test_an_empty_frame_at_the_end_is_kept_by_all_interceptors_behind() -> None:
    last = [
        InterceptorSpec(type="length-prefixed", config={"length_bytes": 1}),
        InterceptorSpec(type="base64"),
        InterceptorSpec(type="decompress", config={"plain": True}),
    ]
    chain = make_chains(last, []).incoming()
    assert chain.feed(b"\x04YQ==\x00") + chain.finish() == [b"a", b""]


@pytest.mark.parametrize("name", ["decrypt", "gelf-chunking", "ingest-timestamp", "regex-extract"])
def test_what_needs_records_is_refused_on_a_stream_of_bytes(name: str) -> None:
    from penstock.core.errors import RequestError
    from tests.connectors.interceptors.pairs import KEY

    config = {"decrypt": {"key": KEY}, "regex-extract": {"pattern": "x"}}.get(name, {})
    with pytest.raises(RequestError, match="whole records") as raised:
        make_chains([InterceptorSpec(type=name, config=config)], [])
    assert "length-prefixed" in raised.value.hint
    make_chains([InterceptorSpec(type="split"), InterceptorSpec(type=name, config=config)], [])
    make_chains([InterceptorSpec(type=name, config=config)], [], messages=True)
