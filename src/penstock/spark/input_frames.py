"""The frames that a pipeline's function gets, and how window operators read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, eq=False)
class InputFrame:
    """A frame as a pipeline's function gets it. An operator on this very object may read for itself."""

    frame: DataFrame
    options: Mapping[str, str]
    """Of its load."""
    read: StructType
    """The columns that its reader returns. The frame may have others too, and some of them with another type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNote:
    """How a window operator reads its events, for `penstock explain`."""

    operator: str
    input: str | None
    """The pipeline's input that it is applied to; None for a frame that is derived from one."""
    not_fused: str | None
    """Why its readers do not run it; None if they do."""
    columns: tuple[str, ...] = ()
    """The columns of the input that it reads, if it is fused."""
    where: str | None = None
    select: Mapping[str, str] = field(default_factory=dict)
