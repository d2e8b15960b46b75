"""Bytes through a decoder, for tests."""

from collections.abc import Iterable

from penstock.core.errors import ProtocolError
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AppendByNumber,
    AppendByOffset,
    Decoder,
    Hello,
    Incoming,
    Message,
    Role,
)

HELLO = VERSIONED.encode(Hello(17, 5))


def document(*messages: Message | bytes) -> bytes:
    """Messages, and raw bytes between them, as a client or server of the document's dialect sends them."""
    return b"".join(m if isinstance(m, bytes) else DOCUMENT.encode(m) for m in messages)


def versioned(*messages: Message | bytes) -> bytes:
    """The same in the versioned dialect, after a Hello."""
    return HELLO + b"".join(m if isinstance(m, bytes) else VERSIONED.encode(m) for m in messages)


def receive(data: bytes, role: Role = Role.SERVER, *, block_size_max: int = 1000) -> list[Incoming]:
    """Everything that comes out, but for a Hello at the start."""
    incoming = list(Decoder(role, block_size_max=block_size_max).feed(data))
    return incoming[1:] if incoming and isinstance(incoming[0], Hello) else incoming


def receive_pieces(decoder: Decoder, pieces: Iterable[bytes]) -> tuple[list[Incoming], str]:
    """What comes out before the error, and the error ("": there was none)."""
    incoming: list[Incoming] = []
    try:
        for piece in pieces:
            incoming.extend(decoder.feed(piece))
    except ProtocolError as error:
        return incoming, str(error)
    return incoming, ""


def stored(append: Incoming) -> bytes:
    """The bytes that an append is to store."""
    assert isinstance(append, AppendByNumber | AppendByOffset)
    assert append.size == sum(map(len, append.pieces))
    assert all(append.pieces)
    return b"".join(append.pieces)
