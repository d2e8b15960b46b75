"""Comparisons with a watermark that may be unknown: an unknown one has reached nothing."""

from typing import overload

import numpy as np
from numpy.typing import NDArray


@overload
def reached(times: int, watermark: int | None) -> bool: ...
@overload
def reached(times: NDArray[np.int64], watermark: int | None) -> NDArray[np.bool_]: ...
def reached(times: int | NDArray[np.int64], watermark: int | None) -> bool | NDArray[np.bool_]:
    """Whether the watermark is at these times, or beyond."""
    if watermark is not None:
        return times <= watermark
    return False if isinstance(times, int) else np.zeros(len(times), bool)
