"""Mutated frames against both decoders: they agree on every byte, only ProtocolError gets out, and the kernels touch
nothing outside their buffers, which lie between two forbidden pages.

`run(seed, count)` is a function of its arguments alone, so a seed that fails once can stay as a test:

    python -m tests.protocol.connector.fuzz 1 1000000
"""

import random
import sys

import numpy as np

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import NOTHING_YET, Decoder, Frame, Message, Use, encode
from penstock.protocol.connector.bulk import Admission, Columns, Receiver, Stop, decoder, kernel
from penstock.protocol.connector.frames import EventTimeUnit
from tests.protocol.connector import oracle
from tests.support.fuzzing import damage, fuzz

from .guarded import Guarded
from .messages import decisions_of, numbers_of
from .vectors import TWO_PHASE_VECTORS, VECTORS

FRAME_SIZE_MAX = 300
FRAMES_MAX = 12
"""Frames in one buffer."""

_OTHERS = [bytes.fromhex(text) for _, text in VECTORS + TWO_PHASE_VECTORS]
_STREAMS = [0, 1, 2, 0xBD29AF3B35FBE79A, 2**64 - 1]
_TIMES = [0, 1, -1, 1_700_000_000_000, 2**63 - 1, -(2**63), 9_223_372_036_854_775, 9_223_372_036_854_776]
_NUMBERS = [0, 1, 4, 5, 26, 27, 28, 31, 255, FRAME_SIZE_MAX, FRAME_SIZE_MAX + 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1]


def run(seed: int, count: int) -> int:
    """Decode `count` frames, most of them mutated; returns how many buffers were refused.

    AssertionError, with the seed and the buffer in it, when the decoders disagree.
    """
    guarded = Guarded()

    def compare(data: bytes, rng: random.Random) -> int:
        _compare_bulk(data, rng, guarded)
        return _compare_streams(data, rng)

    return fuzz(seed, count, _frames, _damage, compare, damages=(0, 1, 1, 1, 2, 5))


def _frames(rng: random.Random) -> list[bytes]:
    return [_message(rng) if rng.random() < 0.85 else rng.choice(_OTHERS) for _ in range(rng.randint(1, FRAMES_MAX))]


def _message(rng: random.Random) -> bytes:
    key = bytes(rng.choice((0, 0, 1, 5, 40)))
    payload = rng.randbytes(rng.choice((0, 1, 7, 100)))
    message_id = rng.choice((rng.randrange(8), rng.randrange(8), NOTHING_YET - 1, rng.getrandbits(64)))
    return encode(Message(rng.choice(_STREAMS), message_id, rng.choice(_TIMES), key, payload))


def _damage(data: bytearray, rng: random.Random) -> None:
    def insert(at: int) -> None:
        data[at:at] = rng.randbytes(rng.randrange(1, 20))

    damage(data, rng, _NUMBERS, insert)


def _compare_bulk(data: bytes, rng: random.Random, guarded: Guarded) -> None:
    """The kernels on both guarded places, the oracle on plain bytes."""
    start = rng.choice((0, 0, rng.randint(0, len(data))))
    expected = oracle.scan(data, start, frame_size_max=FRAME_SIZE_MAX)
    unit, arrival, streams = rng.choice(list(EventTimeUnit)), rng.choice((None, 77)), rng.sample(_STREAMS, 4)
    extracted = len(data) % 2 == 1
    decided = _admit(oracle.StreamTable(0), expected, unit, arrival, streams, extracted=extracted)
    for data_there in (guarded.at_start(data), guarded.at_end(data)):
        found = decoder.scan(data_there, start, frame_size_max=FRAME_SIZE_MAX)
        assert numbers_of(found) == numbers_of(expected)
        table = decoder.StreamTable(rng.getrandbits(64))
        admission = _admit(table, found, unit, arrival, streams, extracted=extracted)
        assert decisions_of(admission) == decisions_of(decided)
        stored, wanted = decoder.rewrite(found, admission, 2), oracle.rewrite(expected, decided, 2)
        assert stored == wanted
        _check_writing(found, admission, [bytes(s.data) for s in wanted], rng)


def _admit(
    table: "decoder.StreamTable | oracle.StreamTable",
    columns: Columns,
    unit: EventTimeUnit,
    arrival: int | None,
    streams: list[int],
    *,
    extracted: bool,
) -> Admission:
    for index, stream_id in enumerate(streams):
        table.open(stream_id, (NOTHING_YET, 0, 3)[index % 3], index % 2)
    return table.admit(columns, unit, arrival, extracted=extracted)


_OUT = Guarded()


def _check_writing(columns: Columns, admission: Admission, wanted: list[bytes], rng: random.Random) -> None:
    """The rewriting kernel once more, into memory that ends where its output ends."""
    place = _OUT.at_end if rng.random() < 0.5 else _OUT.at_start
    size = sum(map(len, wanted))
    out = np.frombuffer(place(bytes(size)), np.uint8) if size else np.empty(0, np.uint8)
    data = np.frombuffer(columns.data, np.uint8) if len(columns.data) else out
    streams = admission.totals.streams.tolist()
    places = np.array([[0, len(wanted[0])], [0, streams[0]]], np.int64)
    messages = (columns.starts, columns.key_sizes, admission.event_times)
    block = np.empty((3, sum(streams)), np.uint64)
    kernel.rewrite(data, messages, admission.routes, tuple(admission.streams), places, out, block)
    assert (places[0].tolist(), out.tobytes()) == ([len(wanted[0]), size], b"".join(wanted))
    assert places[1].tolist() == [streams[0], sum(streams)]


def _compare_streams(data: bytes, rng: random.Random) -> bool:
    """A receiver and a plain decoder, fed in pieces: the same frames, then the same error or none. Was it refused?"""
    piece = rng.choice((1, 3, 17, 64, 1000))
    plain, bulk = _decode_plainly(data), _decode_in_bulk(data, piece)
    assert plain == bulk, f"in pieces of {piece}: {plain} and {bulk}"
    return plain[1] != ""


def _decode_plainly(data: bytes) -> tuple[list[Frame], str]:
    frames: list[Frame] = []
    try:
        frames.extend(Decoder(Use.SOURCE, frame_size_max=FRAME_SIZE_MAX).feed(data))
    except ProtocolError as error:
        return frames, str(error)
    return frames, ""


def _decode_in_bulk(data: bytes, piece: int) -> tuple[list[Frame], str]:
    frames: list[Frame] = []
    receiver = Receiver(frame_size_max=FRAME_SIZE_MAX, chunk_size=64)
    try:
        while data:
            room = receiver.get_buffer()
            count = min(piece, len(room), len(data))
            room[:count], data = data[:count], data[count:]
            for incoming in receiver.received(count):
                frames += _messages(incoming) if isinstance(incoming, Columns) else [incoming]
            assert receiver.buffered_bytes <= FRAME_SIZE_MAX + 4
    except ProtocolError as error:
        return frames, str(error)
    return frames, ""


def _messages(columns: Columns) -> list[Frame]:
    assert columns.stop in Stop
    return [columns.message(index) for index in range(len(columns))]


if __name__ == "__main__":
    print(f"seed {sys.argv[1]}", flush=True)  # before anything can go wrong, even a fault in a kernel
    print(run(int(sys.argv[1]), int(sys.argv[2])), "buffers refused of", sys.argv[2], "frames")
