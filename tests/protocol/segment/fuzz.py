"""Mutated conversations against the decoder: whatever comes, only ProtocolError gets out, and memory has a limit.

`mutate_and_decode(seed, count)` is a function of its arguments alone, so a seed that fails once can stay as a test:

    python tests/protocol/segment/fuzz.py 1 1000000
"""

import random
import sys
from dataclasses import dataclass

from penstock.core.errors import ProtocolError
from penstock.protocol.segment import (
    DOCUMENT,
    FRAME_SIZE_MAX,
    VERSIONED,
    AppendBlock,
    AppendBlockEnd,
    AppendByNumber,
    AppendByOffset,
    AppendSetup,
    AttributeUpdate,
    BeginAppendBlock,
    ConditionalAppend,
    ConditionalBlockEnd,
    CreateSegment,
    DataAppended,
    Decoder,
    EndAppendBlock,
    ErrorMessage,
    Hello,
    Incoming,
    KeepAlive,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    LocateSegment,
    MergeSegments,
    Message,
    NoSuchSegment,
    Padding,
    Part,
    PartialEvent,
    PartialMessage,
    ReadSegment,
    Role,
    SegmentInfo,
    SegmentLocated,
    SegmentRead,
    SetupAppend,
    frame_events,
)

BLOCK_SIZE_MAX = 512
CHUNK_SIZE = 256

_ID = bytes(range(16))
_EVENTS = frame_events([b"one", b"", b"three"])
_SIZE = len(_EVENTS)
_PIECES = DOCUMENT.encode(SetupAppend(_ID, "gestückelt"))


@dataclass(frozen=True, slots=True)
class Conversation:
    """One side's messages, all of them legal, and how many things come out of the decoder for them."""

    name: str
    role: Role
    messages: tuple[bytes, ...]
    incoming: int


def _document(*messages: Message | bytes) -> tuple[bytes, ...]:
    return tuple(m if isinstance(m, bytes) else DOCUMENT.encode(m) for m in messages)


def _versioned(*messages: Message) -> tuple[bytes, ...]:
    return tuple(VERSIONED.encode(m) for m in (Hello(17, 5), *messages))


CONVERSATIONS = (
    Conversation(
        "document's, to a server",
        Role.SERVER,
        _document(
            SetupAppend(_ID, "seg\0é😀"),
            BeginAppendBlock(_ID, 0, _SIZE),
            _EVENTS,
            EndAppendBlock(_ID, _SIZE, _SIZE),
            KeepAlive(b"ping"),
            BeginAppendBlock(_ID, _SIZE, _SIZE - 5),
            _EVENTS[:-5],
            EndAppendBlock(_ID, 2 * _SIZE, _SIZE),
            _EVENTS[-5:],
            PartialMessage(Part.BEGIN, _PIECES[:3]),
            PartialMessage(Part.MIDDLE, _PIECES[3:20]),
            PartialMessage(Part.END, _PIECES[20:]),
            Padding(4),
            ReadSegment("seg", 0, 1000),
        ),
        6,
    ),
    Conversation(
        "document's, to a client",
        Role.CLIENT,
        _document(
            AppendSetup("seg", _ID, 0),
            DataAppended(_ID, _SIZE),
            SegmentRead("seg", 0, at_tail=True, end_of_segment=False, data=_EVENTS),
            NoSuchSegment("seg", "why", 3),
            ErrorMessage("seg", "wärum", 0),
            KeepAlive(b"ping"),
        ),
        6,
    ),
    Conversation(
        "versioned, to a server",
        Role.SERVER,
        _versioned(
            SetupAppend(_ID, "seg\0é😀", "token", 1),
            AppendBlock(_ID, _EVENTS),
            AppendBlockEnd(_ID, _SIZE, b"", 3, 3, 1),
            AppendBlock(_ID, _EVENTS + VERSIONED.encode(PartialEvent(_EVENTS[:9]))),
            AppendBlockEnd(_ID, _SIZE, _EVENTS[9:], 6, 9, 1),
            AppendBlockEnd(_ID, 0, _EVENTS, 3, 12, 1),
            ConditionalAppend(_ID, 13, 99, frame_events([b"if"]), 2),
            ConditionalBlockEnd(_ID, 14, 99, _EVENTS, 2),
            CreateSegment("other", request_id=3),
            MergeSegments("seg", "other", (AttributeUpdate(_ID, 4, 2, 1),), "", 4),
            LocateSegment("seg", 0, 99, "machine", "", 5, objects=True),
            Padding(4),
            KeepAlive(),
        ),
        11,
    ),
    Conversation(
        "versioned, to a client",
        Role.CLIENT,
        _versioned(
            AppendSetup("seg", _ID, -(2**63), 1),
            DataAppended(_ID, 3, 0, 99, 1),
            SegmentRead("seg", 0, at_tail=True, end_of_segment=False, data=_EVENTS, request_id=2),
            SegmentInfo("seg", True, False, False, 1, 99, 0, 3),
            NoSuchSegment("seg", "why", 3, 4),
            SegmentLocated(
                "seg",
                0,
                (LocatedFile("/a", 1, 2),),
                (LocatedRow(0, 32, 8, 90, 7, 0, 90),),
                5,
                (LocatedObject("s3://bucket/é", "parts/1"),),
            ),
            KeepAlive(),
        ),
        8,
    ),
)

_TYPES = sorted({*DOCUMENT.table, *VERSIONED.table, 6, 2**31 - 1})
_NUMBERS = [-(2**31), -1, 0, 1, 7, 8, 16, 255, BLOCK_SIZE_MAX, BLOCK_SIZE_MAX + 1, 2**16, FRAME_SIZE_MAX, 2**31 - 1]


def mutate_and_decode(seed: int, count: int) -> int:
    """Decode `count` mutated conversations; returns how many of them ended in a ProtocolError."""
    rng = random.Random(seed)
    refused = 0
    for _ in range(count):
        conversation = rng.choice(CONVERSATIONS)
        stream = _mutated(conversation, rng)
        refused += _decode(stream, conversation.role, rng)
    return refused


def _mutated(conversation: Conversation, rng: random.Random) -> bytes:
    messages = list(conversation.messages)
    if rng.random() < 0.3:
        _rearrange(messages, rng)
    stream = bytearray(b"".join(messages))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        _damage(stream, rng)
    return bytes(stream)


def _rearrange(messages: list[bytes], rng: random.Random) -> None:
    """Keep the messages whole, and put them where they do not belong."""
    at = rng.randrange(len(messages))
    match rng.randrange(4):
        case 0:
            del messages[at]
        case 1:
            messages.insert(at, rng.choice(messages))
        case 2:
            messages.insert(at, rng.choice(rng.choice(CONVERSATIONS).messages))
        case 3:
            messages[at], messages[0] = messages[0], messages[at]


def _damage(stream: bytearray, rng: random.Random) -> None:
    """Change bytes without regard to where messages begin and end."""
    at = rng.randrange(len(stream) + 1)
    match rng.randrange(7):
        case 0:
            stream[at : at + 1] = rng.randbytes(1)
        case 1 if at < len(stream):
            stream[at] ^= 1 << rng.randrange(8)
        case 2:
            stream[at : at + 4] = rng.choice(_NUMBERS).to_bytes(4, "big", signed=True)
        case 3:
            stream[at : at + 4] = rng.choice(_TYPES).to_bytes(4, "big", signed=True)
        case 4:
            del stream[at : at + rng.randrange(1, 20)]
        case 5:
            stream[at:at] = rng.randbytes(rng.randrange(1, 20))
        case 6:
            stream[at:at] = stream[rng.randrange(len(stream) + 1) :][: rng.randrange(1, 60)]


def _decode(stream: bytes, role: Role, rng: random.Random) -> bool:
    """Whether the stream was refused; everything else that may go wrong is raised."""
    decoder = Decoder(role, block_size_max=BLOCK_SIZE_MAX, chunk_size=CHUNK_SIZE)
    cut = rng.randrange(len(stream) + 1)
    try:
        for piece in (stream[:cut], stream[cut:]):
            for incoming in decoder.feed(piece):
                _check(incoming)
            assert decoder.buffered_bytes <= CHUNK_SIZE + 2 * FRAME_SIZE_MAX
    except ProtocolError as error:
        _check_final(decoder, str(error))
        return True
    return False


def _check(incoming: Incoming) -> None:
    """What comes out is within the limits, and fits together."""
    if isinstance(incoming, AppendByNumber | AppendByOffset):
        assert incoming.size == sum(map(len, incoming.pieces)) <= BLOCK_SIZE_MAX
        assert len(incoming.writer_id) == 16
    else:
        repr(incoming)


def _check_final(decoder: Decoder, error: str) -> None:
    again = ""
    try:
        decoder.received(0)
    except ProtocolError as repeated:
        again = str(repeated)
    assert again == error, "a decoder continues after an error"


if __name__ == "__main__":
    print(mutate_and_decode(int(sys.argv[1]), int(sys.argv[2])), "of", sys.argv[2], "refused")
