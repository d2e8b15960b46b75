"""The bytes of every frame, frozen."""

import pytest

from penstock.protocol import connector
from penstock.protocol.connector import Closed, Decoder, Frame, Message, TwoPhase, Use, decode, encode, unwrap, wrap
from penstock.protocol.connector.codec import FRAMES, TWO_PHASE

from .vectors import TWO_PHASE_VECTORS, VECTORS

ALL = [
    pytest.param(frame, bytes.fromhex(text), id=f"{frame.wire_name} {number}")
    for number, (frame, text) in enumerate(VECTORS + TWO_PHASE_VECTORS)
]


@pytest.mark.parametrize(("frame", "data"), ALL)
def test_a_frame_is_encoded_to_its_bytes(frame: Frame, data: bytes) -> None:
    assert encode(frame).hex(" ", 4) == data.hex(" ", 4)


@pytest.mark.parametrize(("frame", "data"), ALL)
def test_bytes_are_decoded_to_their_frame(frame: Frame, data: bytes) -> None:
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    decoded = decode(data[4], data[5:])
    if isinstance(frame, TwoPhase):
        assert isinstance(decoded, Message)
        assert decoded == wrap(frame)
        decoded = unwrap(decoded)
    assert decoded == frame


@pytest.mark.parametrize(("frame", "data"), ALL)
def test_a_sink_s_decoder_unwraps_two_phase_messages_by_itself(frame: Frame, data: bytes) -> None:
    assert list(Decoder(Use.SINK).feed(data)) == [frame]


def test_every_frame_and_every_message_has_a_vector() -> None:
    assert {type(frame) for frame, _ in VECTORS} == {layout.frame for layout in FRAMES.values()}
    assert {type(frame) for frame, _ in TWO_PHASE_VECTORS} == {layout.frame for layout in TWO_PHASE.values()}


def test_every_frame_class_is_in_a_table() -> None:
    tabled = {layout.frame for table in (FRAMES, TWO_PHASE) for layout in table.values()}
    exported = {value for value in vars(connector).values() if isinstance(value, type) and issubclass(value, Frame)}
    assert tabled == exported - {Frame, TwoPhase, Closed}
