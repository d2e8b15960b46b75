"""Buffers of valid items, damaged at random, for fuzzers of decoders. All follows from the seed."""

import random
from collections.abc import Callable, Sequence


def fuzz(
    seed: int,
    count: int,
    make: Callable[[random.Random], list[bytes]],
    damage: Callable[[bytearray, random.Random], None],
    compare: Callable[[bytes, random.Random], int],
    damages: Sequence[int],
) -> int:
    """Makes buffers until they had `count` items, damages each as often as one of `damages` says, and compares. Returns
    the sum of what `compare` returns.

    AssertionError, with the seed and the buffer in it, when `compare` raises.
    """
    total = number = 0
    while count > 0:
        rng = random.Random(f"{seed}/{number}")
        items = make(rng)
        data = bytearray(b"".join(items))
        for _ in range(rng.choice(damages)):
            damage(data, rng)
        try:
            total += compare(bytes(data), rng)
        except Exception as error:
            raise AssertionError(f"seed {seed}, buffer {number}: {error!r}\n{data.hex()}") from error
        count -= len(items)
        number += 1
    return total


def damage(data: bytearray, rng: random.Random, numbers: Sequence[int], replace: Callable[[int], None]) -> None:
    """One change at a random place: a byte, a bit, one of `numbers` as a length, a cut, or what `replace` does."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            data[at : at + 1] = rng.randbytes(1)
        case 1 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at : at + 4] = rng.choice(numbers).to_bytes(4, "big")
        case 3:
            data[at : at + 2] = rng.choice(numbers).to_bytes(4, "big")[2:]
        case 4:
            del data[at : at + rng.randrange(1, 20)]
        case 5:
            replace(at)
        case 6:
            del data[at:]
