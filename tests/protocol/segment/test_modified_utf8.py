import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError, RequestError
from penstock.protocol.segment.primitives import decode_text, encode_text


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", ""),
        ("seg", "73 65 67"),
        ("\0", "c0 80"),
        ("a\0b", "61 c0 80 62"),
        ("\x7f", "7f"),
        ("\x80", "c2 80"),
        ("é", "c3 a9"),
        ("\u07ff", "df bf"),
        ("\u0800", "e0 a0 80"),
        ("€", "e2 82 ac"),
        ("\ud7ff\ue000", "ed 9f bf ee 80 80"),
        ("\uffff", "ef bf bf"),
        ("\U00010000", "ed a0 80 ed b0 80"),
        ("😀", "ed a0 bd ed b8 80"),
        ("\U0010ffff", "ed af bf ed bf bf"),
        ("a😀\0é", "61 ed a0 bd ed b8 80 c0 80 c3 a9"),
    ],
)
def test_text_has_these_bytes(text: str, data: str) -> None:
    assert encode_text(text) == bytes.fromhex(data)
    assert decode_text(bytes.fromhex(data)) == text


@given(st.text())
def test_any_text_survives_a_round_trip(text: str) -> None:
    assert decode_text(encode_text(text)) == text


@given(st.binary(max_size=30))
def test_any_bytes_are_a_text_or_a_readable_error(data: bytes) -> None:
    try:
        text = decode_text(data)
    except ProtocolError:
        return
    assert encode_text(text) == data  # each text has one form only


@pytest.mark.parametrize(
    "data",
    [
        "00",  # NUL is c0 80
        "61 00",
        "80",  # continuation without a start
        "61 bf",
        "c3",  # start without its continuation
        "c3 28",
        "e2 82",
        "e2 82 28",
        "c0",
        "c0 81",  # overlong
        "c1 bf",
        "e0 80 80",
        "e0 9f bf",
        "e4 c0 80",  # NUL in the middle of a character
        "f0 9f 98 80",  # four bytes, as in plain UTF-8
        "f8",
        "fe",
        "ff",
        "ed a0 80",  # half a pair
        "ed b0 80",
        "ed a0 80 61",
        "ed b0 80 ed a0 80",  # the halves in the wrong order
        "ed a0 80 ed a0 80 ed b0 80",
    ],
)
def test_malformed_bytes_are_refused(data: str) -> None:
    with pytest.raises(ProtocolError, match="text"):
        decode_text(bytes.fromhex(data))


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_not_sent(text: str) -> None:
    with pytest.raises(RequestError, match="half a surrogate pair"):
        encode_text(text)
