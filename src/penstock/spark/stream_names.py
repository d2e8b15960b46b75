"""The names of a connector's streams, as columns: no loop here runs over rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.protocol.stored.bulk import Column

STREAMS_MAX = 2_000_000
"""Names that are kept for one connector, about 50 bytes each; beyond it they are asked for anew."""

ASK_MAX = 10_000
"""Ids in one request."""

_U64_MASK = 2**64 - 1


class StreamNames:
    """`ask` gives the names of ids, "" for one that is not known: it is called for ids that were not seen before.

    A stream keeps its name for ever, so an answer is never asked for again.
    """

    def __init__(self, ask: Callable[[Sequence[int]], Sequence[str]]) -> None:
        self._ask = ask
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        """In order; the names lie in the same order."""
        self._names: Any = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, stream_ids: Column) -> Any:
        """The names of all these streams as an Arrow array of strings; null where there is none."""
        encoded = pa.array(stream_ids, pa.int64()).dictionary_encode()
        places = self._places(encoded.dictionary.to_numpy())
        if len(places) == 1:
            return pa.repeat(self._names[int(places[0])], len(encoded))
        return self._names.take(pa.array(places).take(encoded.indices))

    def _places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the names those of the ids are; asks for the ones that are missing."""
        places = np.searchsorted(self._ids, ids)
        inside = places < len(self._ids)
        known = np.zeros(len(ids), np.bool_)
        known[inside] = self._ids[places[inside]] == ids[inside]
        if known.all():
            return places
        missing = ids[~known]
        if len(self) + len(missing) > STREAMS_MAX:
            self._ids, self._names, missing = self._ids[:0], self._names[:0], ids
        self._learn(missing)
        return np.searchsorted(self._ids, ids)

    def _learn(self, ids: NDArray[np.int64]) -> None:
        names: list[str] = []
        for start in range(0, len(ids), ASK_MAX):
            names += self._ask([number & _U64_MASK for number in ids[start : start + ASK_MAX].tolist()])
        all_ids = np.concatenate((self._ids, ids))
        all_names = pa.concat_arrays([self._names, pa.array([name or None for name in names], pa.string())])
        order = np.argsort(all_ids)
        self._ids, self._names = all_ids[order], all_names.take(pa.array(order))
