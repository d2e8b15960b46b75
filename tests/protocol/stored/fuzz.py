"""Mutated events against both decoders: they agree on every byte, only Damaged gets out, and the kernels touch nothing
outside their buffers, which lie between two forbidden pages. What is decoded is encoded again, by both.

`run(seed, count)` is a function of its arguments alone, so a seed that fails once can stay as a test:

    python -m tests.protocol.stored.fuzz 1 1000000
"""

import random
import sys
from types import ModuleType
from typing import Any

import msgpack
import numpy as np

from penstock.core.errors import Damaged, RequestError
from penstock.core.types import Buffer
from penstock.protocol.stored import NO_TIME, Kind
from penstock.protocol.stored.bulk import Bytes, Events, Wanted, codec
from tests.protocol.connector.guarded import Guarded
from tests.protocol.stored import oracle
from tests.support.fuzzing import damage, fuzz

from .events import EMPTY_EVENT, raw, shown, shown_encoded, stored

EVENTS_MAX = 12
"""Events in one buffer."""

_NUMBERS = [0, 1, 27, 28, 29, 34, 255, 256, 2**16 - 1, 2**16, 2**24 - 9, 2**24 - 8, 2**31 - 1, 2**31, 2**32 - 1]
_LEADS = [0x80, 0x81, 0x8F, 0xA6, 0xBF, 0xC0, 0xC1, *range(0xC4, 0xCA), *range(0xCA, 0xE0), 0xFF]
_VALUES = ["s", "sensors", "x" * 40, "y" * 300, b"bytes", 5, -1, 2.5, None, [1, ["source"]], {"stream": "no"}, 2**63]


def run(seed: int, count: int) -> int:
    """Decode `count` events, most of them mutated; returns how many buffers were refused.

    AssertionError, with the seed and the buffer in it, when the decoders disagree.
    """
    guarded = Guarded()

    def compare(data: bytes, rng: random.Random) -> int:
        return _compare(data, rng, guarded)

    return fuzz(seed, count, _events, _damage, compare, damages=(0, 0, 1, 1, 2, 5))


def _events(rng: random.Random) -> list[bytes]:
    return [_event(rng) for _ in range(rng.randint(1, EVENTS_MAX))]


def _event(rng: random.Random) -> bytes:
    match rng.randrange(10):
        case 0:
            return EMPTY_EVENT
        case 1:
            return raw(rng.randbytes(rng.choice((28, 40))))
    key, payload = bytes(rng.choice((0, 0, 1, 5, 40))), rng.randbytes(rng.choice((0, 1, 7, 100)))
    time = rng.choice((0, NO_TIME, 1_700_000_000_000_000))
    return stored(rng.getrandbits(64), rng.getrandbits(64), time, key, payload, _metadata(rng))


def _metadata(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return b""
    labels = rng.sample(["source", "stream", "other", "sourc", "streams"], rng.randint(0, 4))
    packed = bytearray(msgpack.packb({label: rng.choice(_VALUES) for label in labels}))
    if rng.random() < 0.2:
        packed[rng.randrange(len(packed))] = rng.choice(_LEADS)
    return bytes(packed)


def _damage(data: bytearray, rng: random.Random) -> None:
    def lead(at: int) -> None:
        data[at : at + 1] = bytes((rng.choice(_LEADS),))

    damage(data, rng, _NUMBERS, lead)


_WANTED = (Wanted(), Wanted(metadata=True))
"""With either, all that is decoded can be encoded again."""


def _compare(data: bytes, rng: random.Random, guarded: Guarded) -> bool:
    """The kernels on both guarded places, the oracle on plain bytes. Was it refused?"""
    kind = rng.choice((Kind.STORED, Kind.STORED, Kind.STORED, Kind.RAW))
    wanted = rng.choice((*_WANTED, *_WANTED, Wanted(keys=False), Wanted(values=False), Wanted(origins=False)))
    offset = rng.choice((0, 1, 2**40))
    expected, refusal = _decoded(oracle, data, offset, kind, wanted)
    for place in (guarded.at_start, guarded.at_end):
        found, error = _decoded(codec, place(data), offset, kind, wanted)
        assert error == refusal, f"{error!r}, not {refusal!r}"
        assert (found is None) == (expected is None)
        assert found is None or expected is None or shown(found) == shown(expected)
        if found is not None and kind is Kind.STORED and wanted in _WANTED:
            _compare_encoded(found, rng)
    return refusal != ""


def _decoded(bulk: ModuleType, data: Buffer, offset: int, kind: Kind, wanted: Wanted) -> tuple[Events | None, str]:
    try:
        events: Events = bulk.decode(data, offset, kind, wanted)
    except Damaged as error:
        return None, str(error)
    return events, ""


_PLACES = [Guarded() for _ in range(5)]
_TEXTS = ("values", "keys", "sources", "streams", "metadata")


def _compare_encoded(events: Events, rng: random.Random) -> None:
    """Back into events, from columns that end where a forbidden page begins; read again, they are the same."""
    columns: dict[str, Any] = {
        "event_times": events.event_times,
        "stream_ids": events.stream_ids,
        "event_ids": events.event_ids,
    }
    for place, name in zip(_PLACES, _TEXTS, strict=True):
        text = getattr(events, name)
        if text is not None and not (name == "streams" and rng.random() < 0.3):
            columns[name] = Bytes(text.offsets, place.at_end(bytes(text.data)))
    first, refusal = _encoded(codec, columns)
    assert (first, refusal) == _encoded(oracle, columns)
    if refusal:
        return
    again, before = shown(codec.decode(first[0], wanted=Wanted(metadata="metadata" in columns))), shown(events)
    for name in ("stream_ids", "event_ids", "event_times", "keys", "values"):
        assert again[name] == before[name]
    for name in ("sources", "streams"):
        nothing = [b""] * len(events)
        if name in columns or "metadata" in columns:
            assert (again[name] or nothing) == (before[name] or nothing)
    assert np.all(np.diff(first[1]) >= 36)


def _encoded(bulk: ModuleType, columns: dict[str, Any]) -> tuple[tuple[bytes, list[int]], str]:
    """Metadata that a reader passes over may be refused by whoever is to write them: for a key that is no str."""
    try:
        return shown_encoded(bulk.encode(**columns)), ""
    except RequestError as error:
        return (b"", []), str(error)


if __name__ == "__main__":
    print(f"seed {sys.argv[1]}", flush=True)  # before anything can go wrong, even a fault in a kernel
    print(run(int(sys.argv[1]), int(sys.argv[2])), "buffers refused of", sys.argv[2], "events")
