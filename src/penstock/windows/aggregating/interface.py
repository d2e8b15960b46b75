"""What every aggregate is, built in or a user's own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError

Groups: TypeAlias = NDArray[np.int64]
"""For each row the number of its group, from 0; no group is empty."""


class Aggregate(ABC):
    """A value for each key and window, made of *partials*: one for each group of rows, merged in any order.

    Rows come in any order, cut anywhere: for the same rows it must not matter how they were spread over `add`s, nor in
    which order partials were merged. Partials are an Arrow array of any type, always the same one for the same types of
    inputs; they are what the state holds.
    """

    inputs: tuple[str, ...]
    """The columns that `add` gets, in this order."""

    ordered: ClassVar[bool] = False
    """Whether the inputs after the first are the order of the events: time, then what tells ties apart."""

    @abstractmethod
    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """`count` partials of the rows; row i belongs to group `groups[i]`. Without rows, none, of the same type."""

    @abstractmethod
    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """`count` partials of partials; partial i belongs to group `groups[i]`."""

    @abstractmethod
    def result(self, partials: pa.Array) -> pa.Array:
        """A value for each partial; it must leave the partials as they are."""

    def reading(self, *inputs: str) -> Self:
        """The same aggregate of other columns."""
        other = copy(self)
        object.__setattr__(other, "inputs", inputs)
        return other

    def partial_type(self, types: Sequence[pa.DataType]) -> pa.DataType:
        """Of the inputs' types. Raises RequestError for types that it cannot take."""
        return self._type("add", self._none(types))

    def result_type(self, types: Sequence[pa.DataType]) -> pa.DataType:
        """Of the inputs' types. Raises RequestError for types that it cannot take."""
        partials = self._none(types)
        self._type("add", partials)
        return self._type("result", self.result(partials))

    def parameters(self) -> dict[str, Any]:
        """What else decides the meaning of its partials: state made with others is refused.

        The fields of a dataclass; of another class the public attributes that are numbers, texts or truth values.
        """
        fields: Mapping[str, Any] | None = getattr(self, "__dataclass_fields__", None)
        if fields is not None:
            return {name: getattr(self, name) for name in fields if name not in ("inputs", "ordered")}
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        return {name: plain[name] for name in sorted(plain) if not name.startswith("_")}

    def _type(self, method: str, given: Any) -> pa.DataType:
        if not isinstance(given, pa.Array | pa.ChunkedArray):
            raise RequestError(
                f"`{method}` of the aggregate {type(self).__name__} gives {type(given).__name__}, not an Arrow array",
                "Let it return pa.array(…), also of no rows.",
            )
        return given.type

    def _none(self, types: Sequence[pa.DataType]) -> pa.Array:
        return self.add([pa.array([], each) for each in types], np.empty(0, np.int64), 0)
