"""State as bytes: a table of partials. Most of it is never updated after it fired: then no revision is stored."""

import numpy as np
import pyarrow as pa

from penstock.core.errors import Damaged
from penstock.windows.engine import blob
from penstock.windows.engine.bucket import BucketState
from penstock.windows.engine.partials import REVISION

_STATE = "state"
_COMPRESSION = "lz4"
"""Half the bytes of a count by key, for 30 ns a key: to move them to the state store and into its log costs more."""


def write_state(table: pa.Table) -> bytes:
    """As `read_state` reads it."""
    if not table.column(REVISION).to_numpy().any():
        table = table.drop_columns([REVISION])
    return blob.pack({_STATE: table}, {}, _COMPRESSION)


def read_state(state: BucketState, number: int) -> pa.Table:
    """Raises Damaged if the blob that the index names is not there."""
    data = state.get(number)
    if data is None:
        raise Damaged(f"the state of windows from {number} is missing", "Begin anew: penstock pipeline reset NAME")
    table = blob.unpack(data).tables[_STATE]
    if REVISION in table.column_names:
        return table
    return table.append_column(REVISION, pa.array(np.zeros(table.num_rows, np.int32)))
