"""Interceptors of records: what is bad is a dead letter alone, within limits."""

import bz2
import gzip
import lzma
import random
import sys
import zlib
from typing import Any, get_args

import brotli
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.application.config.types import KnownTypes
from penstock.connectors.interceptors.api import BadBytes, Rejected
from penstock.connectors.interceptors.chain import IncomingChain
from penstock.connectors.interceptors.compression import LEVELS, Algorithm, DecompressedStream, DecompressOptions
from penstock.connectors.interceptors.encryption import DecryptOptions
from penstock.connectors.interceptors.gelf_chunking import Chunking, GelfChunkingOptions, Unchunking
from penstock.connectors.interceptors.pieces import Collecting, CollectOptions
from penstock.connectors.interceptors.records import IngestTimestampOptions, stamp
from penstock.connectors.registry import make_chains
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.interceptors.pairs import KEY
from tests.connectors.interceptors.test_split import cut

MIB = 1 << 20


def fed(name: str, *records: bytes, **config: Any) -> tuple[list[bytes], list[Rejected]]:
    """Each is a record."""
    chain = make_chains([InterceptorSpec(type=name, config=config)], [], messages=True).incoming()
    found = [one for record in records for one in chain.feed(record)] + chain.finish()
    return found, chain.take_rejected()


@pytest.mark.parametrize(
    ("name", "config", "good", "bad"),
    [
        ("base64", {}, b"YQ==", b"Y!=="),
        ("base64", {"alphabet": "url"}, b"--__", b"++//"),
        ("decompress", {}, gzip.compress(b"a", mtime=0), b"a"),
        ("decompress", {}, zlib.compress(b"a"), zlib.compress(b"a")[:-1]),
        ("decompress", {"algorithm": "brotli"}, brotli.compress(b"a"), brotli.compress(b"a") + b"x"),
        ("regex-extract", {"pattern": "[0-9]+"}, b"x12", b"x"),
    ],
    ids=["base64", "base64 url", "gzip", "zlib", "brotli", "regex-extract"],
)
def test_a_bad_record_is_a_dead_letter_alone(name: str, config: dict[str, Any], good: bytes, bad: bytes) -> None:
    found, rejected = fed(name, good, bad, good, **config)
    assert len(found) == 2
    assert [one.data for one in rejected] == [bad]
    assert rejected[0].reason


def test_an_encrypted_record_that_was_changed_or_has_another_key_is_a_dead_letter() -> None:
    other = "H" + KEY[1:]
    (mine,) = make_chains([], [InterceptorSpec(type="encrypt", config={"key": KEY})]).outgoing().feed([b"text"])
    (theirs,) = make_chains([], [InterceptorSpec(type="encrypt", config={"key": other})]).outgoing().feed([b"text"])
    changed = mine[:-1] + bytes([mine[-1] ^ 1])
    found, rejected = fed("decrypt", mine, changed, theirs, b"short", key=KEY)
    assert (found, [one.data for one in rejected]) == ([b"text"], [changed, theirs, b"short"])
    assert fed("decrypt", mine, theirs, key=KEY, former_keys=[other]) == ([b"text", b"text"], [])
    assert fed("decrypt", mine, key=KEY, context="x")[0] == []


@pytest.mark.parametrize("key", ["AAAA", "no base64!", ""])
def test_a_key_of_another_size_is_refused_without_its_value(key: str) -> None:
    with pytest.raises(RequestError, match="key") as raised:
        make_chains([], [InterceptorSpec(type="encrypt", config={"key": key})])
    assert not key or key not in str(raised.value)


BOMBS = {
    "gzip": gzip.compress(bytes(64 * MIB), 9),
    "zstd": zstandard.ZstdCompressor().compress(bytes(64 * MIB)),
    "lz4": lz4.frame.compress(bytes(64 * MIB)),
    "brotli": brotli.compress(bytes(64 * MIB), quality=5),
    "zlib": zlib.compress(bytes(64 * MIB), 9),
    "xz": lzma.compress(bytes(64 * MIB), preset=0),
    "bzip2": bz2.compress(bytes(64 * MIB), 1),
    "snappy": bytes(cramjam.snappy.compress(bytes(64 * MIB))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_record_that_expands_beyond_the_limit_is_a_dead_letter_with_its_own_bytes(name: str) -> None:
    found, rejected = fed("decompress", BOMBS[name], algorithm=name, record_bytes_max=MIB)
    assert found == []
    assert rejected == [Rejected(BOMBS[name], f"it becomes longer than {MIB} bytes (record_bytes_max)")]


def test_every_format_has_a_bomb() -> None:
    assert {*get_args(Algorithm)} - {*BOMBS} == {"snappy-raw"}
    bomb = bytes(cramjam.snappy.compress_raw(bytes(64 * MIB)))
    found, rejected = fed("decompress", bomb, algorithm="snappy-raw", record_bytes_max=MIB)
    assert (found, [one.data for one in rejected]) == ([], [bomb])


@pytest.mark.parametrize("name", BOMBS)
def test_a_stream_that_expands_beyond_the_limit_ends(name: str) -> None:
    stream = DecompressedStream(DecompressOptions(algorithm=name, expansion_max=10))  # type: ignore[arg-type]
    pieces = [BOMBS[name][at : at + 1000] for at in range(0, len(BOMBS[name]), 1000)]
    with pytest.raises(BadBytes, match="expansion_max") as raised:
        [*map(stream.feed, pieces)]
    assert sum(map(len, raised.value.records)) <= 2 * MIB


def test_an_incomplete_stream_is_a_dead_letter_and_what_was_read_of_it_is_not_lost() -> None:
    whole = gzip.compress(b"one\ntwo\nthr")
    chain = make_chains([InterceptorSpec(type="decompress"), InterceptorSpec(type="split")], []).incoming()
    assert chain.feed(whole[:-4]) == [b"one", b"two"]
    with pytest.raises(BadBytes, match="incomplete") as raised:
        chain.finish()
    assert raised.value.data == b"thr"


def test_several_formats_may_follow_each_other_and_plain_text_passes_if_it_may() -> None:
    mixed = gzip.compress(b"a") + lz4.frame.compress(b"b") + zstandard.ZstdCompressor().compress(b"c")
    stream = DecompressedStream(DecompressOptions())
    assert b"".join(stream.feed(mixed) + stream.finish()) == b"abc"
    assert fed("decompress", b"text", mixed, plain=True) == ([b"text", b"abc"], [])


@pytest.mark.parametrize("places", [[], [25], [20, 30, 45]], ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "gzip"])
def test_zero_bytes_after_a_member_of_gzip_are_left_out(algorithm: str, places: list[int]) -> None:
    spec = InterceptorSpec(type="decompress", config={"algorithm": algorithm})
    padded = gzip.compress(b"a", mtime=0) + b"\0" * 20
    for raw, expected in ((padded, b"a"), (padded + gzip.compress(b"b") + b"\0", b"ab")):
        stream = make_chains([spec], []).incoming()
        assert b"".join([one for piece in cut(raw, places) for one in stream.feed(piece)] + stream.finish()) == expected
        alone = make_chains([spec], [], messages=True).incoming()
        assert alone.feed(raw) + alone.finish() == [expected]


@pytest.mark.parametrize(
    ("algorithm", "level", "text"),
    [
        ("gzip", 10, "0 to 9"),
        ("bzip2", 0, "1 to 9"),
        ("zstd", 23, "1 to 22"),
        ("lz4", 17, "0 to 16"),
        ("brotli", 12, "0 to 11"),
        ("xz", -1, "0 to 9"),
        ("snappy", 1, "no levels"),
    ],
)
def test_a_level_that_a_format_does_not_have_is_refused(algorithm: str, level: int, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        make_chains([], [InterceptorSpec(type="compress", config={"algorithm": algorithm, "level": level})])


@pytest.mark.parametrize("algorithm", LEVELS)
def test_every_level_of_a_format_works(algorithm: Algorithm) -> None:
    for level in LEVELS[algorithm]:
        out = make_chains([], [InterceptorSpec(type="compress", config={"algorithm": algorithm, "level": level})])
        back = make_chains([InterceptorSpec(type="decompress", config={"algorithm": algorithm})], [], messages=True)
        assert back.incoming().feed(out.outgoing().feed([b"abc" * 100])[0]) == [b"abc" * 100]


def test_gelf_chunks_arrive_in_any_order_and_twice() -> None:
    message = bytes(range(200))
    chunks = Chunking(GelfChunkingOptions(chunk_bytes=64)).feed([message, b"short"])
    assert len(chunks) == 5
    assert all(len(one) <= 64 for one in chunks)
    mixed = [chunks[2], chunks[4], chunks[0], chunks[0], chunks[3], chunks[1]]
    assert fed("gelf-chunking", *mixed) == ([b"short", message], [])


def test_a_value_that_begins_like_a_gelf_chunk_is_sent_as_one() -> None:
    values = [b"\x1e\x0f", b"\x1e\x0f" + bytes(range(60)), b"\x1e\x0f" + bytes(100)]
    chunks = Chunking(GelfChunkingOptions(chunk_bytes=64)).feed(values)
    assert all(len(chunk) <= 64 for chunk in chunks)
    assert fed("gelf-chunking", *chunks) == (values, [])


def test_gelf_chunks_that_wait_too_long_are_a_dead_letter() -> None:
    now = [0.0]
    chunks = Chunking(GelfChunkingOptions(chunk_bytes=64)).feed([bytes(100)])
    stage = Unchunking(GelfChunkingOptions(), lambda: now[0])
    assert stage.feed(chunks[0]) == []
    assert stage.buffered == 64
    now[0] = 5.1
    assert stage.feed(chunks[1]) == []
    (rejected,) = stage.take_rejected()
    assert rejected.data == bytes(52)
    assert "incomplete after 5 s: 1 of 2 chunks" in rejected.reason
    assert stage.finish() == []
    assert len(stage.take_rejected()) == 1


def test_gelf_chunks_say_how_long_they_may_wait_and_expire_without_others() -> None:
    now = [0.0]
    chunks = [Chunking(GelfChunkingOptions(chunk_bytes=64)).feed([bytes(100)])[0] for _ in range(2)]
    chain = IncomingChain([Unchunking(GelfChunkingOptions(), lambda: now[0])])
    assert chain.is_timed
    assert chain.wait_seconds() is None
    chain.feed(chunks[0])
    now[0] = 2.0
    chain.feed(chunks[1])
    assert chain.wait_seconds() == 3.0
    now[0] = 5.0
    chain.expire()
    assert [one.reason for one in chain.take_rejected()] == ["incomplete after 5 s: 1 of 2 chunks of a GELF message"]
    assert chain.wait_seconds() == 2.0
    assert not IncomingChain().is_timed


def test_gelf_messages_that_wait_are_bounded() -> None:
    first = [Chunking(GelfChunkingOptions(chunk_bytes=64)).feed([bytes(100)])[0] for _ in range(5)]
    stage = Unchunking(GelfChunkingOptions(messages_max=3))
    stage.feed_whole(first)
    assert len(stage.take_rejected()) == 2
    bad = [b"\x1e\x0f", b"\x1e\x0f12345678\x02\x02", b"\x1e\x0f12345678\x00\xff", b"\x1e\x0f12345678\x00\x00"]
    assert fed("gelf-chunking", *bad)[1] == [
        Rejected(one, reason) for one, (_, reason) in zip(bad, fed("gelf-chunking", *bad)[1], strict=True)
    ]
    assert len(fed("gelf-chunking", *bad)[1]) == 4


def test_time_is_put_before_each_record() -> None:
    now = 1_767_323_045_000_006_007

    def stamped(**options: Any) -> bytes:
        return stamp(IngestTimestampOptions.model_validate(options), lambda: now)(b"x")

    assert stamped() == now.to_bytes(8, "big") + b"x"
    assert stamped(form="number", unit="ms") == b"1767323045000 x"
    assert stamped(form="iso", separator=r"\t") == b"2026-01-02T03:04:05.000006Z\tx"


def test_empty_records_are_removed() -> None:
    assert fed("remove-empty", b"", b"a", b" ", b"b") == ([b"a", b" ", b"b"], [])
    assert fed("remove-empty", b"", b"a", b" \n", b"b", blank=True) == ([b"a", b"b"], [])


def test_a_regex_takes_a_group_and_decides_about_records_without_a_match() -> None:
    pattern = r"^<\d+>(?P<text>.*)$"
    assert fed("regex-extract", b"<34>hello \xff", b"bad", pattern=pattern, missing="drop") == ([b"hello \xff"], [])
    assert fed("regex-extract", b"bad", pattern=pattern, missing="keep") == ([b"bad"], [])
    assert fed("regex-extract", b"a=1", pattern=r"(?P<k>\w)=(?P<v>\w)", group="v") == ([b"1"], [])
    assert fed("regex-extract", b"a=1;", pattern=r"(?P<k>\w)=(?P<v>\w)") == ([b"a=1"], [])
    for wrong in ({"pattern": "("}, {"pattern": "(?=x)"}, {"pattern": "x", "group": "y"}):
        with pytest.raises(RequestError, match="regex-extract"):
            fed("regex-extract", **wrong)


def test_collected_records_leave_whole_when_a_stream_is_cut_off() -> None:
    specs = [
        InterceptorSpec(type="split"),
        InterceptorSpec(type="collect", config={"max_elements": 3, "delimiter": ","}),
    ]
    chain = make_chains(specs, []).incoming()
    assert chain.feed(b"a\nb\nc\nd\ne\nf") == [b"a,b,c"]
    assert chain.cut_off() == ([b"d,e"], b"f")


def test_a_stream_is_cut_into_chunks_and_its_last_one_is_shorter() -> None:
    chain = make_chains([InterceptorSpec(type="chunk", config={"bytes": 3})], []).incoming()
    assert chain.feed(b"abcde") + chain.feed(b"fg") == [b"abc", b"def"]
    assert chain.finish() == [b"g"]
    out = make_chains([], [InterceptorSpec(type="chunk", config={"bytes": 3})]).outgoing()
    assert out.feed([b"abcd", b"", b"e"]) == [b"abc", b"d", b"", b"e"]
    assert out.counts == [0, 1, 1, 1]


@pytest.mark.parametrize("text", [b"x5 abc", b"999999999999999999999 a", b" a"])
def test_a_length_that_is_not_in_digits_is_bad(text: bytes) -> None:
    chain = make_chains([InterceptorSpec(type="length-prefixed", config={"form": "text"})], []).incoming()
    with pytest.raises(BadBytes, match="decimal digits"):
        chain.feed(b"2 ok" + text)


def test_a_netstring_without_its_comma_and_a_varint_without_end_are_bad() -> None:
    netstring = {"form": "text", "separator": ":", "terminator": ","}
    chain = make_chains([InterceptorSpec(type="length-prefixed", config=netstring)], []).incoming()
    with pytest.raises(BadBytes, match="terminator") as raised:
        chain.feed(b"3:abc,2:abX")
    assert (raised.value.records, raised.value.data) == ([b"abc"], b"2:abX")
    chain = make_chains([InterceptorSpec(type="length-prefixed", config={"form": "varint"})], []).incoming()
    with pytest.raises(BadBytes, match="varint"):
        chain.feed(b"\xff" * 10)


def test_a_missing_package_of_decrypt_is_named_and_does_not_end_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "cryptography":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(RequestError, match="needs cryptography"):
        fed("decrypt", key=KEY)
    assert KnownTypes().directions("decrypt", DecryptOptions(key=KEY)) == {"in"}


def test_patterns_are_those_of_re2() -> None:
    assert fed("regex-extract", b"1\xc3\xa9", pattern=r"(?P<x>\pN)\C*\z") == ([b"1"], [])
    with pytest.raises(RequestError, match=r"write \(\?:…\)"):
        fed("regex-extract", pattern="(a)(?P<x>b)")


def test_a_stream_that_was_harmless_so_far_may_not_expand_beyond_the_limit() -> None:
    stream = DecompressedStream(DecompressOptions())
    compressor = zstandard.ZstdCompressor().compressobj()
    harmless = compressor.compress(random.Random(1).randbytes(MIB))
    assert stream.feed(harmless + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    with pytest.raises(BadBytes, match="expansion_max"):
        stream.feed(compressor.compress(bytes(64 * MIB)) + compressor.flush())


@pytest.mark.parametrize(
    "spec",
    [
        InterceptorSpec(type="collect", config={"max_elements": 2}),
        InterceptorSpec(type="collect", config={"delimiter": ","}),
        InterceptorSpec(type="remove-empty", config={"blank": True}),
    ],
    ids=str,
)
def test_what_depends_on_where_bytes_are_cut_needs_records(spec: InterceptorSpec) -> None:
    with pytest.raises(RequestError, match="whole records"):
        make_chains([spec], [])
    make_chains([InterceptorSpec(type="split"), spec], [])
    make_chains([spec], [], messages=True)


def test_all_of_a_stream_is_collected_however_it_is_cut() -> None:
    for pieces in ([b"abc"], [b"a", b"bc"]):
        chain = make_chains([InterceptorSpec(type="collect")], []).incoming()
        assert [one for piece in pieces for one in chain.feed(piece)] + chain.finish() == [b"abc"]


@pytest.mark.parametrize(
    ("first", "is_whole"),
    [("split", False), ("length-prefixed", False), ("chunk", True), ("collect", True), ("base64", True)],
)
def test_a_message_reaches_its_first_interceptor_whole_unless_that_takes_parts(first: str, is_whole: bool) -> None:
    config = {"bytes": 3} if first == "chunk" else {}
    spec = InterceptorSpec(type=first, config=config)
    assert make_chains([spec], [], messages=True).takes_messages is is_whole
    assert not make_chains([spec], []).takes_messages


def test_bytes_of_gelf_messages_that_wait_are_bounded() -> None:
    whole = 60_000
    chunks = [Chunking(GelfChunkingOptions(chunk_bytes=whole)).feed([bytes(whole + 1)])[0] for _ in range(30)]
    stage = Unchunking(GelfChunkingOptions(), waiting_bytes_max=20 * whole)
    for chunk in chunks:
        assert stage.feed(chunk) == []
        assert stage.buffered <= 20 * whole
    rejected = stage.take_rejected()
    assert len(rejected) == 10
    assert "bytes of GELF messages wait" in rejected[0].reason
    stage.finish()
    assert stage.buffered == 0


def test_a_gelf_chunk_that_comes_twice_counts_once() -> None:
    chunks = Chunking(GelfChunkingOptions(chunk_bytes=64)).feed([bytes(100)])
    stage = Unchunking(GelfChunkingOptions())
    stage.feed(chunks[0])
    buffered = stage.buffered
    stage.feed(chunks[0])
    assert stage.buffered == buffered == len(chunks[0])
    assert stage.feed(chunks[1]) == [bytes(100)]
    assert stage.buffered == 0


@pytest.mark.parametrize("delimiter", ["", ","])
def test_empty_records_that_are_collected_are_bounded(delimiter: str) -> None:
    stage = Collecting(CollectOptions(delimiter=delimiter), elements_max=3)
    assert stage.feed_whole([b""] * 3) == []
    assert stage.feed_whole([b""]) is None, "one by one"
    with pytest.raises(BadBytes, match="more than 3 records") as raised:
        stage.feed(b"")
    assert raised.value.data == delimiter.encode() * 3
    assert stage.buffered == 0


def test_a_million_empty_records_of_a_stream_are_a_dead_letter() -> None:
    specs = [InterceptorSpec(type="split", config={"skip_empty": False}), InterceptorSpec(type="collect")]
    chain = make_chains(specs, []).incoming()
    assert chain.feed(b"\n" * 600_000) == []
    with pytest.raises(BadBytes, match="more than 1,000,000 records"):
        chain.feed(b"\n" * 600_000)


@given(
    st.lists(st.lists(st.binary(max_size=3), max_size=7), max_size=4),
    st.integers(1, 5) | st.none(),
    st.sampled_from(["", ", "]),
    st.integers(1, 40),
)
def test_records_are_collected_the_same_together_and_one_by_one(
    calls: list[list[bytes]], elements: int | None, delimiter: str, size: int
) -> None:
    options = CollectOptions(max_elements=elements, delimiter=delimiter, record_bytes_max=size)
    together, alone = Collecting(options), Collecting(options)
    for records in calls:
        found = together.feed_whole(records)
        if found is None:
            return  # it may be too long: one by one
        assert found == [event for record in records for event in alone.feed(record)]
        assert together.buffered == alone.buffered
    assert together.finish() == alone.finish()
