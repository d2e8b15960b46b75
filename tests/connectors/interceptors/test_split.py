"""Split: the same records in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.split import SplitOptions, Splitting


def splitting(**options: object) -> Splitting:
    return Splitting(SplitOptions.model_validate(options))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(st.binary(max_size=8).filter(lambda one: b"\r\n" not in one)),
    st.lists(st.integers(0, 200)),
)
def test_records_do_not_depend_on_how_the_bytes_are_chunked(records: list[bytes], places: list[int]) -> None:
    data = b"".join(record + b"\r\n" for record in records)
    tested = splitting(delimiter=r"\r\n", skip_empty=False)
    found: list[bytes] = []
    fed = 0
    for piece in cut(data, places):
        found += tested.feed(piece)
        fed += len(piece)
        assert fed - tested.buffered == len(b"\r\n".join([*data[:fed].split(b"\r\n")[:-1], b""]))
    assert found == data.split(b"\r\n")[:-1]
    assert tested.finish() == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\n", b"\n"),
        ("\n", b"\n"),
        (r"\r\n", b"\r\n"),
        (r"\0", b"\0"),
        (r"\x1e", b"\x1e"),
        (r"\\n", b"\\n"),
        ("§", "§".encode()),
    ],
)
def test_a_delimiter_is_written_with_escapes(written: str, meant: bytes) -> None:
    assert splitting(delimiter=written).feed(b"a" + meant + b"b" + meant) == [b"a", b"b"]


@pytest.mark.parametrize("written", ["", r"\q", "\\", r"\x1"])
def test_an_invalid_delimiter_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"escape|at least one byte"):
        SplitOptions(delimiter=written)


def test_empty_records_are_omitted_unless_configured() -> None:
    assert splitting().feed(b"a\n\nb\n") == [b"a", b"b"]
    assert splitting(skip_empty=False).feed(b"a\n\nb\n") == [b"a", b"", b"b"]


def test_only_the_record_over_the_limit_is_bad() -> None:
    tested = splitting(record_bytes_max=4)
    with pytest.raises(BadBytes, match="record_bytes_max") as raised:
        tested.feed(b"good\nsome more\nrest")
    assert raised.value.records == [b"good"]
    assert raised.value.data == b"some more\nrest"
    assert tested.buffered == 0


def test_a_record_that_never_ends_is_bad_before_it_fills_memory() -> None:
    tested = splitting(record_bytes_max=10)
    assert tested.feed(b"0123456789") == []
    with pytest.raises(BadBytes) as raised:
        tested.feed(b"x")
    assert raised.value.data == b"0123456789x"


def test_a_last_record_without_its_delimiter_is_an_event_or_a_dead_letter() -> None:
    tested = splitting()
    assert tested.feed(b"a\nb") == [b"a"]
    assert tested.finish() == [b"b"]
    strict = splitting(unterminated="dead-letter")
    assert strict.feed(b"a\nb") == [b"a"]
    with pytest.raises(BadBytes) as raised:
        strict.finish()
    assert raised.value.data == b"b"


@given(
    st.lists(st.sampled_from([b"", b"a", b"bc", bytes(4 << 10)]), max_size=12),
    st.lists(st.integers(0, 50_000), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_columns_have_the_same_records(
    records: list[bytes], places: list[int], skip_empty: bool, separates: bool
) -> None:
    data = b"".join(record + b"\n" for record in records) + b"rest"
    plain, tested = (splitting(skip_empty=skip_empty, separates=separates) for _ in range(2))
    for piece in cut(data, places):
        columns = tested.feed_columns(piece)
        assert (tested.feed(piece) if columns is None else columns.rows()) == plain.feed(piece)
        assert tested.buffered == plain.buffered
    assert tested.finish() == plain.finish()


def test_columns_are_for_pieces_that_cannot_be_bad() -> None:
    data = b"a\n" * (4 << 10)
    assert splitting().feed_columns(b"a\n") is None
    assert splitting(delimiter="ab").feed_columns(data) is None
    assert splitting().feed_columns(bytes(8 << 10)) is None, "no record ends there"
    short = splitting(record_bytes_max=8 << 10)
    assert len(short.feed_columns(data) or ()) == 4 << 10
    short.feed(b"b")
    assert short.feed_columns(data) is None


@pytest.mark.parametrize("unterminated", ["dead-letter", "drop"])
def test_a_record_behind_a_separator_cannot_be_unterminated(unterminated: str) -> None:
    with pytest.raises(ValidationError, match="no delimiter follows the last record"):
        splitting(separates=True, unterminated=unterminated)
