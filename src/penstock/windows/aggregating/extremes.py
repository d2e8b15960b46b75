"""Least and greatest values."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.aggregating.grouped import none_of, valid_rows
from penstock.windows.aggregating.interface import Aggregate, Groups


@dataclass(frozen=True)
class _Extreme(Aggregate):
    inputs: tuple[str, ...]

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """One value for each group; null if there are only nulls."""
        return self.merge(columns[0], groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Of values of any type that has an order."""
        kind = partials.type
        values, groups = valid_rows(partials, groups)
        if pa.types.is_floating(kind):
            return self._of_numbers(values.to_numpy(), groups, count, kind)
        if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
            width = pa.int32() if kind.bit_width == 32 else pa.int64()
            numbers = values if pa.types.is_integer(kind) else values.view(width)
            return self._of_numbers(numbers.to_numpy(), groups, count, kind)
        return self._of_others(values, groups, count)

    def result(self, partials: pa.Array) -> pa.Array:
        """The values themselves."""
        return partials

    @abstractmethod
    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array: ...

    def _of_others(self, values: pa.Array, groups: Groups, count: int) -> pa.Array:
        name = type(self).__name__.lower()
        try:
            found = pa.table({"g": groups, "v": values}).group_by("g", use_threads=False).aggregate([("v", name)])
        except pa.ArrowNotImplementedError as error:
            raise RequestError(
                f"values of type {values.type} have no order", "Choose a column of a plain type."
            ) from error
        places = np.full(count, -1)
        places[found.column("g").to_numpy()] = np.arange(found.num_rows)
        return found.column(f"v_{name}").combine_chunks().take(pa.array(places, mask=places < 0))


class Min(_Extreme):
    """The least value that is not null. NaN is above all numbers, as in Spark."""

    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
        if values.dtype.kind == "f":
            best = np.full(count, np.nan, values.dtype)
            with np.errstate(invalid="ignore"):
                np.fmin.at(best, groups, values)
        else:
            best = np.full(count, np.iinfo(values.dtype).max, values.dtype)
            np.minimum.at(best, groups, values)
        return _typed(best, groups, count, kind)


class Max(_Extreme):
    """The greatest value that is not null. NaN is above all numbers, as in Spark."""

    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
        lowest = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
        best = np.full(count, lowest, values.dtype)
        with np.errstate(invalid="ignore"):
            np.maximum.at(best, groups, values)
        return _typed(best, groups, count, kind)


def _typed(best: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
    array = pa.array(best, mask=none_of(groups, count), from_pandas=False)
    return array if array.type == kind else array.view(kind)
