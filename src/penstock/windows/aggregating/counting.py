"""Counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.windows.aggregating.grouped import sum_integers, valid_rows
from penstock.windows.aggregating.interface import Aggregate, Groups


@dataclass(frozen=True)
class Count(Aggregate):
    """How many rows; of a column, how many values that are not null."""

    inputs: tuple[str, ...] = ()

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """One number for each group."""
        for column in columns:
            _, groups = valid_rows(column, groups)
        return pa.array(np.bincount(groups, minlength=count).astype(np.int64, copy=False))

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """The sum: 64 bits hold more rows than will ever come."""
        return pa.array(sum_integers(partials.to_numpy(), groups, count))

    def result(self, partials: pa.Array) -> pa.Array:
        """The numbers themselves."""
        return partials
