"""Comparisons with a watermark that may be unknown, and so has reached nothing, or at the end of time.

All sources have ended then: it has reached everything, also windows of the last times there are, which end behind it.
"""

from typing import overload

import numpy as np
from numpy.typing import NDArray

from penstock.windows.kinds import TIME_MAX_US


@overload
def reached(times: int, watermark: int | None) -> bool: ...
@overload
def reached(times: NDArray[np.int64], watermark: int | None) -> NDArray[np.bool_]: ...
def reached(times: int | NDArray[np.int64], watermark: int | None) -> bool | NDArray[np.bool_]:
    """Whether the watermark is at these times, or beyond."""
    if watermark is not None and watermark < TIME_MAX_US:
        return times <= watermark
    everything = watermark is not None
    return everything if isinstance(times, int) else np.full(len(times), everything)
