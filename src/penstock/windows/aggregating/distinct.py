"""How many different values there are, about: HyperLogLog, of a hash of 64 bits.

The first bits of a hash choose a register, which keeps the longest run of zeros that begins the rest. A partial lists
the registers that are not zero, so that few values take few bytes. The estimate is Ertl's ("New cardinality
estimation algorithms for HyperLogLog sketches", 2017, section 2.4), which needs no tables and is right for few values
as for many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.aggregating.grouped import offsets_of, valid_rows
from penstock.windows.aggregating.interface import Aggregate, Groups

ERROR_MIN, ERROR_MAX = 0.005, 0.26
"""16 to 65,536 registers: with more a set would be smaller than its sketch, with fewer it is no estimate."""

_RANK_BITS = 6
_RANKS = 1 << _RANK_BITS
_ESTIMATED_AT_ONCE = 1 << 14
"""Groups: a histogram of ranks takes 512 bytes for each."""


@dataclass(frozen=True)
class ApproxDistinct(Aggregate):
    """About how many values that are not null. Input: a hash (int64) of each value, null for null.

    `error` is the standard deviation of the estimate, relative to the truth.
    """

    inputs: tuple[str, ...]
    error: float = 0.02

    def __post_init__(self) -> None:
        """Raises RequestError for an error that is out of range."""
        if not ERROR_MIN <= self.error <= ERROR_MAX:
            raise RequestError(
                f"approx_distinct's error is {ERROR_MIN} to {ERROR_MAX}, not {self.error}", "Give another."
            )

    @property
    def register_bits(self) -> int:
        """2 to this many registers; their number decides the error: 1.04 / √registers."""
        return ceil(2 * log2(1.04 / self.error))

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """A list of (register, rank) for each group."""
        hashes, groups = valid_rows(columns[0], groups)
        bits = hashes.cast(pa.int64()).to_numpy().view(np.uint64)
        registers = bits >> np.uint64(64 - self.register_bits)
        rest = bits << np.uint64(self.register_bits)
        ranks = np.minimum(_leading_zeros(rest), 64 - self.register_bits) + 1
        return self._lists((registers.astype(np.int64) << _RANK_BITS) | ranks, groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Each register's greatest rank."""
        lengths = partials.value_lengths().to_numpy()
        entries = partials.flatten().to_numpy().astype(np.int64)
        return self._lists(entries, np.repeat(groups, lengths), count)

    def result(self, partials: pa.Array) -> pa.Array:
        """Estimates, rounded."""
        lengths = partials.value_lengths().to_numpy()
        ranks = partials.flatten().to_numpy().astype(np.int64) & (_RANKS - 1)
        ends = np.cumsum(lengths)
        estimates = np.empty(len(lengths))
        for first in range(0, len(lengths), _ESTIMATED_AT_ONCE):
            some = lengths[first : first + _ESTIMATED_AT_ONCE]
            begin, end = (ends[first] - some[0], ends[first + len(some) - 1])
            rows = np.repeat(np.arange(len(some)), some) * _RANKS + ranks[begin:end]
            histogram = np.bincount(rows, minlength=len(some) * _RANKS).reshape(len(some), _RANKS)
            estimates[first : first + len(some)] = _estimate(histogram.astype(np.float64), self.register_bits)
        return pa.array(np.rint(estimates).astype(np.int64))

    def _lists(self, entries: NDArray[np.int64], groups: Groups, count: int) -> pa.Array:
        """Of the greatest rank of each register; entries are sorted by register, then rank."""
        pairs = np.sort((groups << (self.register_bits + _RANK_BITS)) | entries)
        registers = pairs >> _RANK_BITS
        greatest = np.ones(len(pairs), bool)
        greatest[:-1] = registers[1:] != registers[:-1]
        pairs = pairs[greatest]
        kept = (pairs & ((1 << (self.register_bits + _RANK_BITS)) - 1)).astype(np.int32)
        return pa.ListArray.from_arrays(offsets_of(pairs >> (self.register_bits + _RANK_BITS), count), pa.array(kept))


def _leading_zeros(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Of numbers of 64 bits, by halves: each half is exact as a double."""
    high, low = (words >> np.uint64(32)).astype(np.float64), (words & np.uint64(0xFFFFFFFF)).astype(np.float64)
    _, high_bits = np.frexp(high)
    _, low_bits = np.frexp(low)
    return np.where(high > 0, 32 - high_bits, 64 - low_bits).astype(np.int64)


def _estimate(histogram: NDArray[np.float64], register_bits: int) -> NDArray[np.float64]:
    """Of how many registers have each rank; those of rank 0 are not in the histogram."""
    registers = float(1 << register_bits)
    longest = 64 - register_bits
    zeros = registers - histogram.sum(axis=1)
    total = registers * _tau(1 - histogram[:, longest + 1] / registers)
    for rank in range(longest, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    total += registers * _sigma(zeros / registers)
    with np.errstate(divide="ignore"):
        estimates: NDArray[np.float64] = registers * registers / (2 * np.log(2) * total)
    return estimates


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """X + Σ x^(2^k) 2^(k-1); infinite for 1, when all registers are zero."""
    whole = x >= 1
    power, weight, total = np.where(whole, 0.0, x), 1.0, np.where(whole, np.inf, x)
    while True:
        power = power * power
        following = total + power * weight
        weight += weight
        if np.array_equal(following, total):
            return total
        total = following


def _tau(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(1 - x - Σ (1 - x^(2^-k))² 2^-k) / 3; nothing for 0 and 1."""
    inner = (x > 0) & (x < 1)
    root, weight, total = np.where(inner, x, 1.0), 1.0, np.where(inner, 1 - x, 0.0)
    while True:
        root = np.sqrt(root)
        weight *= 0.5
        following = total - (1 - root) ** 2 * weight
        if np.array_equal(following, total):
            return total / 3
        total = following
