"""The bytes of every message, frozen."""

import pytest

from penstock.protocol import segment
from penstock.protocol.segment import (
    DOCUMENT,
    HEADER_SIZE,
    VERSIONED,
    Dialect,
    Failure,
    Message,
    Reply,
    Request,
)

from .vectors import DOCUMENT_VECTORS, VERSIONED_VECTORS

VECTORS = [
    pytest.param(dialect, message, bytes.fromhex(text), id=f"{dialect.name} {type(message).__name__}")
    for dialect, vectors in ((DOCUMENT, DOCUMENT_VECTORS), (VERSIONED, VERSIONED_VECTORS))
    for message, text in vectors
]


@pytest.mark.parametrize(("dialect", "message", "data"), VECTORS)
def test_a_message_is_encoded_to_its_bytes(dialect: Dialect, message: Message, data: bytes) -> None:
    assert dialect.encode(message).hex(" ", 4) == data.hex(" ", 4)
    assert b"".join(dialect.encode_parts(message)) == data


@pytest.mark.parametrize(("dialect", "message", "data"), VECTORS)
def test_bytes_are_decoded_to_their_message(dialect: Dialect, message: Message, data: bytes) -> None:
    kind = int.from_bytes(data[:4], "big", signed=True)
    assert int.from_bytes(data[4:8], "big") == len(data) - HEADER_SIZE
    assert dialect.decode(kind, memoryview(data)[HEADER_SIZE:]) == message


@pytest.mark.parametrize(
    ("dialect", "vectors"), [(DOCUMENT, DOCUMENT_VECTORS), (VERSIONED, VERSIONED_VECTORS)], ids=repr
)
def test_every_message_has_a_vector(dialect: Dialect, vectors: list[tuple[Message, str]]) -> None:
    assert {type(message) for message, _ in vectors} == {layout.message for layout in dialect.table.values()}


def test_every_message_class_is_in_a_dialect() -> None:
    tabled = {layout.message for dialect in (DOCUMENT, VERSIONED) for layout in dialect.table.values()}
    exported = {value for value in vars(segment).values() if isinstance(value, type) and issubclass(value, Message)}
    assert tabled == exported - {Message, Request, Reply, Failure}
