"""The id of a stream whose program has chosen none."""

from hashlib import sha256


def stream_id_of(name: str) -> int:
    """The first 8 bytes, big-endian, of the name's SHA-256: an id "should always be a deterministic mapping"."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big")
