"""Interceptors with what undoes each: `out` of one side, and `in` of the other."""

from dataclasses import dataclass
from typing import Any

from penstock.connectors.registry import make_chains
from penstock.protocol.api.deployment import InterceptorSpec

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@dataclass(frozen=True)
class Pair:
    out: InterceptorSpec
    back: InterceptorSpec
    cuts: bool = False
    """Whether its output can be read record by record from a stream of bytes."""
    needs_records: bool = False
    joins: bool = False
    """Whether what comes back are all values in one."""
    needs_base64: bool = False
    """Whether it needs values without its delimiter, as base64 before it makes them."""
    bytes_max: int | None = None
    """Of a value, of which other interceptors of the chain may make twenty times as much."""


def pair(out: str, back: str, of_out: dict[str, Any], of_back: dict[str, Any] | None = None, **more: Any) -> Pair:
    back_config = of_out if of_back is None else of_back
    return Pair(InterceptorSpec(type=out, config=of_out), InterceptorSpec(type=back, config=back_config), **more)


_STREAMS = ("gzip", "zlib", "zstd", "lz4", "snappy", "xz", "bzip2")

CUTTING = [
    *(
        pair("length-prefixed", "length-prefixed", {"length_bytes": width, "order": order}, cuts=True)
        for width in (2, 4, 8)
        for order in ("big", "little")
    ),
    pair("length-prefixed", "length-prefixed", {"length_bytes": 1}, cuts=True, bytes_max=12),
    pair("length-prefixed", "length-prefixed", {"form": "varint"}, cuts=True),
    pair("length-prefixed", "length-prefixed", {"form": "text"}, cuts=True),
    pair("length-prefixed", "length-prefixed", {"form": "text", "separator": ":", "terminator": ","}, cuts=True),
]

TRANSFORMING = [
    pair("base64", "base64", {}),
    pair("base64", "base64", {"alphabet": "url"}),
    *(pair("compress", "decompress", {"algorithm": name}, {"algorithm": "auto"}) for name in _STREAMS),
    *(pair("compress", "decompress", {"algorithm": name}) for name in _STREAMS),
]

OF_RECORDS = [
    pair("encrypt", "decrypt", {"key": KEY}, needs_records=True),
    pair("encrypt", "decrypt", {"key": KEY, "cipher": "chacha20-poly1305", "context": "x"}, needs_records=True),
    pair("compress", "decompress", {"algorithm": "brotli"}, needs_records=True),
    pair("compress", "decompress", {"algorithm": "snappy-raw"}, needs_records=True),
    pair("base64", "base64", {"padding": False}, needs_records=True),
    pair("gelf-chunking", "gelf-chunking", {"chunk_bytes": 64}, needs_records=True),
]

COLLECTED = [pair("chunk", "collect", {"bytes": 3}, {}, joins=True)]

OF_TEXT = [
    pair("join", "split", {"max_elements": 2}, {"skip_empty": False}, cuts=True, needs_base64=True),
    pair(
        "join",
        "split",
        {"delimiter": r"\r\n", "max_elements": 1},
        {"delimiter": r"\r\n", "skip_empty": False},
        cuts=True,
        needs_base64=True,
    ),
    pair(
        "collect",
        "split",
        {"delimiter": ","},
        {"delimiter": ",", "skip_empty": False, "separates": True},
        cuts=True,
        needs_base64=True,
    ),
]


def sent(pairs: list[Pair], values: list[bytes]) -> list[bytes]:
    """What the peer receives."""
    chain = make_chains([], [one.out for one in pairs]).outgoing()
    return chain.feed(values) + chain.flush()


def received(pairs: list[Pair], pieces: list[bytes], *, messages: bool = False) -> list[bytes]:
    """What comes back of these pieces, by the inverse chain."""
    chain = make_chains([one.back for one in reversed(pairs)], [], messages=messages).incoming()
    found = [record for piece in pieces for record in chain.feed(piece)] + chain.finish()
    assert chain.take_rejected() == []
    return found
