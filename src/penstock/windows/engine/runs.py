"""Intervals of keys that overlap, directly or through others: sessions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.windows.engine.keys import CODES_MAX, Codes, Grouping


@dataclass(frozen=True, slots=True)
class Runs:
    """Groups of intervals, and each group's bounds."""

    grouping: Grouping
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def runs_of(codes: Codes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Runs:
    """Connected intervals of equal codes: they overlap; one that begins where another ends does not touch it."""
    if not len(starts):
        none = np.empty(0, np.int64)
        return Runs(Grouping(none, none), none, none)
    order = _by_key_and_time(codes, starts)
    keys, begins = codes.of_rows[order], starts[order]
    new_key = np.concatenate(([True], keys[1:] != keys[:-1]))
    highest = _running_maximum(new_key, ends[order])
    new_run = new_key.copy()
    new_run[1:] |= begins[1:] >= highest[:-1]
    first = np.flatnonzero(new_run)
    last = np.concatenate((first[1:], [len(order)])) - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(new_run) - 1
    return Runs(Grouping(groups, order[first]), begins[first], highest[last])


def _by_key_and_time(codes: Codes, times: NDArray[np.int64]) -> NDArray[np.int64]:
    low, high = int(times.min()), int(times.max())
    length = high - low + 1
    if codes.bound <= CODES_MAX // length:
        return np.argsort(codes.of_rows * length + (times - low))
    return np.lexsort((times, codes.of_rows))


def _running_maximum(new_key: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the ends so far of the same key. They rise by themselves unless one interval lies within another."""
    if np.all((ends[1:] >= ends[:-1]) | new_key[1:]):
        return ends
    distinct, ranks = np.unique(ends, return_inverse=True)
    key_first = (np.cumsum(new_key) - 1) * len(distinct)
    highest: NDArray[np.int64] = distinct[np.maximum.accumulate(key_first + ranks) - key_first]
    return highest
