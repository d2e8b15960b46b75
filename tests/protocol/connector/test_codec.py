"""Frames survive the wire, and whatever is malformed is a ProtocolError that names where and what."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.protocol.connector import (
    FRAME_SIZE_MAX,
    Ack,
    Closed,
    EndOfStream,
    Error,
    Frame,
    Hello,
    HelloCheck,
    Message,
    Notify,
    Ok,
    Phase2,
    Restart,
    TwoPhase,
    Use,
    decode,
    encode,
    error_frame,
    stream_id_of,
    unwrap,
    wrap,
)

from .strategies import frames, two_phase
from .vectors import STREAM, TWO_PHASE_VECTORS, VECTORS


@given(frames)
def test_every_frame_survives_the_wire(frame: Frame) -> None:
    data = encode(frame)
    assert decode(data[4], data[5:]) == decode(data[4], memoryview(data)[5:]) == frame


@given(two_phase)
def test_every_two_phase_message_survives_the_wire(message: TwoPhase) -> None:
    data = encode(message)
    decoded = decode(data[4], data[5:])
    assert decoded == wrap(message)
    assert isinstance(decoded, Message)
    assert unwrap(decoded) == message


@given(st.integers(0, 255), st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(tag: int, body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        frame = decode(tag, body)
        if isinstance(frame, Message):
            unwrap(frame)


TOLERATED = {("RESTART", 0), ("EOS_MESSAGE", 8)}


@pytest.mark.parametrize(("frame", "text"), VECTORS, ids=lambda value: getattr(value, "wire_name", ""))
def test_a_body_that_is_cut_off_anywhere_is_malformed(frame: Frame, text: str) -> None:
    data = bytes.fromhex(text)
    whole = len(data) - (len(frame.payload) if isinstance(frame, Message) else 0)  # a payload is what there is
    for end in range(5, whole):
        if (frame.wire_name, end - 5) not in TOLERATED:
            with pytest.raises(ProtocolError, match=f"^{frame.wire_name}: .*bytes expected"):
                decode(data[4], data[5:end])


@pytest.mark.parametrize(("frame", "text"), VECTORS, ids=lambda value: getattr(value, "wire_name", ""))
def test_bytes_behind_the_last_field_are_malformed(frame: Frame, text: str) -> None:
    data = bytes.fromhex(text)
    for more in range(1, 17):
        if isinstance(frame, Message) or (frame.wire_name, more) in TOLERATED:
            continue
        with pytest.raises(ProtocolError, match=f"^{frame.wire_name}: {more} bytes after the last field"):
            decode(data[4], data[5:] + bytes(more))


@pytest.mark.parametrize(("message", "text"), TWO_PHASE_VECTORS, ids=lambda value: getattr(value, "wire_name", ""))
def test_a_two_phase_message_that_is_cut_off_or_too_long_is_malformed(message: TwoPhase, text: str) -> None:
    payload = bytes(wrap(message).payload)
    for end in range(1, len(payload)):
        with pytest.raises(ProtocolError, match=f"^{message.wire_name}: .*bytes expected"):
            unwrap(Message(0, 0, 0, b"", payload[:end]))
    with pytest.raises(ProtocolError, match=f"^{message.wire_name}: 1 bytes after the last field"):
        unwrap(Message(0, 0, 0, b"", payload + b"\0"))


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (Message(1, 0, 0, b"", b"\xc9"), "stream 1"),
        (Message(0, 1, 0, b"", b"\xc9"), "id 1"),
        (Message(0, 0, 1, b"", b"\xc9"), "time 1"),
        (Message(0, 0, 0, b"k", b"\xc9"), "a key of 1 bytes"),
        (Message(0, 0, 0, b"", b""), "payload is empty"),
        (Message(0, 0, 0, b"", b"\x01"), "tag 1: unknown two-phase message"),
    ],
)
def test_anything_else_on_stream_0_of_a_sink_is_malformed(message: Message, wrong: str) -> None:
    with pytest.raises(ProtocolError, match=wrong):
        unwrap(message)


def test_tags_that_the_document_and_the_addendum_leave_out_are_unknown() -> None:
    for tag in (9, 12, 201, 255):
        with pytest.raises(ProtocolError, match=f"^tag {tag}: unknown frame"):
            decode(tag, b"")


def test_a_restart_with_an_empty_body_is_decoded() -> None:
    assert decode(Restart.tag, b"") == Restart("")


def test_eight_more_bytes_of_an_eos_are_ignored() -> None:
    assert decode(EndOfStream.tag, STREAM.to_bytes(8, "big") + b"12345678") == EndOfStream(STREAM)


def test_a_flag_is_0_or_1() -> None:
    with pytest.raises(ProtocolError, match=r"^NOTIFY_ACK: success: 2 is neither 0 nor 1"):
        decode(4, b"\2" + bytes(16))
    with pytest.raises(ProtocolError, match=r"^PHASE2: commit: 255 is neither 0 nor 1"):
        unwrap(Message(0, 0, 0, b"", bytes((205, 0, 0, 255))))


def test_a_count_is_not_believed_before_its_bytes_are_there() -> None:
    with pytest.raises(ProtocolError, match=r"^ACK: acked: 68719476720 bytes expected, 16 are left"):
        decode(Ack.tag, bytes(4) + b"\xff\xff\xff\xff" + bytes(16))
    with pytest.raises(ProtocolError, match=r"^REPLY_UNCOMMITTED: txn_ids: 8589934590 bytes expected"):
        unwrap(Message(0, 0, 0, b"", b"\xca" + bytes(8) + b"\xff\xff\xff\xff" + bytes(16)))


def test_names_that_are_not_utf_8_come_out_as_escapes() -> None:
    assert decode(Notify.tag, bytes(8) + b"\0\3a\xffb" + bytes(8)) == Notify(0, "a\\xffb", 0)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (Ok(2**32), RequestError),
        (Ok(-1), RequestError),
        (EndOfStream(2**64), RequestError),
        (Message(0, 0, 2**63, b"", b""), RequestError),
        (Message(0, 0, 0, bytes(2**16), b""), LimitExceeded),
        (Error("x" * 2**16), LimitExceeded),
        (Error("\ud800"), RequestError),
        (Phase2(bytes(2**16), True), LimitExceeded),
        (Message(0, 0, 0, b"", bytes(FRAME_SIZE_MAX - 26)), LimitExceeded),
    ],
    ids=lambda value: getattr(value, "wire_name", ""),
)
def test_what_does_not_fit_is_not_encoded(frame: Frame, error: type[RequestError]) -> None:
    with pytest.raises(error, match=f"^{frame.wire_name}: "):
        encode(frame)


def test_a_frame_as_large_as_the_limit_is_encoded() -> None:
    assert len(encode(Message(0, 0, 0, b"", bytes(FRAME_SIZE_MAX - 27)))) == 4 + FRAME_SIZE_MAX


def test_a_close_is_not_a_frame_that_is_sent() -> None:
    with pytest.raises(RequestError, match="Closed is not a frame that is sent"):
        encode(Closed())


# HELLO


def hello(version: str, cookie: bytes = b"", rest: bytes = b"\0\1p\0\1i") -> bytes:
    return encode(Hello(version, cookie, "", ""))[5:-4] + rest


@pytest.mark.parametrize(
    ("use", "versions"), [(Use.SOURCE, ["0.0.1", "0.0.1+migrate"]), (Use.SINK, ["v0.0.1"])], ids=["source", "sink"]
)
def test_a_version_is_one_of_exactly_these(use: Use, versions: list[str]) -> None:
    check = HelloCheck(use)
    for version in ("0.0.1", "0.0.1+migrate", "v0.0.1", "0.0.10", "", "0.0", "0.0.1 ", "version"):
        if version in versions:
            assert decode(0, hello(version), hello=check) == Hello(version, b"", "p", "i")
            continue
        with pytest.raises(ProtocolError, match=r"^HELLO: version .* is not supported"):
            decode(0, hello(version), hello=check)


def test_the_version_is_checked_first_then_the_cookie_then_the_rest_is_decoded() -> None:
    check = HelloCheck(Use.SOURCE, b"tacos")
    with pytest.raises(ProtocolError, match="version"):
        decode(0, hello("2", b"wrong", b"\xff"), hello=check)
    with pytest.raises(ProtocolError, match="version"):
        decode(0, hello("2")[:3], hello=check)
    with pytest.raises(ProtocolError, match="cookie is wrong"):
        decode(0, hello("0.0.1", b"wrong", b"\xff"), hello=check)
    with pytest.raises(ProtocolError, match=r"^HELLO: program: "):
        decode(0, hello("0.0.1", b"tacos", b"\xff\xff"), hello=check)


@pytest.mark.parametrize("cookie", [b"", b"taco", b"tacos!", b"TACOS", b"\xff"])
def test_the_error_never_repeats_the_cookie_that_was_expected(cookie: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^HELLO: the cookie is wrong") as caught:
        decode(0, hello("0.0.1", cookie), hello=HelloCheck(Use.SOURCE, b"tacos"))
    assert "tacos" not in str(caught.value)
    assert "tacos" not in repr(HelloCheck(Use.SOURCE, b"tacos")) + repr(Hello("", b"tacos", "", ""))


@pytest.mark.parametrize(("use", "version"), [(Use.SOURCE, "0.0.1"), (Use.SINK, "v0.0.1")])
def test_a_cookie_where_none_is_configured_is_an_error_too(use: Use, version: str) -> None:
    with pytest.raises(ProtocolError, match="unexpected cookie"):
        decode(0, hello(version, b"tacos"), hello=HelloCheck(use))


def test_an_error_that_is_sent_is_short() -> None:
    assert error_frame(ProtocolError("no")) == Error("no")
    sent = error_frame(ProtocolError("é" * 2000))
    assert 1000 < len(sent.text.encode()) <= 1024


def test_a_stream_s_default_id_is_the_hash_of_its_name() -> None:
    assert stream_id_of("key_0") == STREAM
