"""Filters that know of letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.spark.letter import LETTER
from penstock.spark.lettered import has_letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def where(frame: DataFrame, condition: Column | str) -> DataFrame:
    """The rows for which the condition holds, and all letters. Of a frame without letters, as its own `where`."""
    from pyspark.sql import functions

    wanted = functions.expr(condition) if isinstance(condition, str) else condition
    return frame.where(frame[LETTER].isNotNull() | wanted) if has_letters(frame) else frame.where(wanted)


def split(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows that are no letters, without the column `letter`, and a frame of nothing but letters: for what cannot be
    done to both, as joins and aggregates. Return the second beside what becomes of the first, as
    `{"out": …, "err": letters}`; each goes to the port that it names. What makes the frame is then done twice.
    """
    if not has_letters(frame):
        raise RequestError("the frame has no letters", f"It has no column `{LETTER}`: use it as it is.")
    letter = frame[LETTER]
    return frame.where(letter.isNull()).drop(LETTER), frame.where(letter.isNotNull()).select(LETTER)
