"""Frames whose reader has decoded them: what is left to Spark is to parse VARIANTs, which arrive as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from penstock.core.kinds import VARIANT, Kind
from penstock.protocol.stored.names import OUTPUT_PREFIX, REPLAY_PREFIX, Form, Source, connector_segment
from penstock.spark.codecs.batch_decoder import Decoder
from penstock.spark.codecs.codec import Branch
from penstock.spark.outputs import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BRANCH = "__branch"


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """`frame` has the decoded columns and the internal column BRANCH."""

    frame: DataFrame
    branches: Sequence[Branch]
    of_branch: Sequence[tuple[str, ...]]
    """For each branch, the columns that it sets."""


def numbered(frame: DataFrame, decoder: Decoder) -> Decoded:
    """A frame from `with_variants`, with the number of the branch that has decoded each row."""
    branches = decoder.branches
    return Decoded(frame.withColumn(BRANCH, _number(frame, branches)), branches, decoder.names_of_branches)


def with_variants(frame: DataFrame, decoder: Decoder) -> DataFrame:
    """The frame of a load with this decoder. A VARIANT is the text of its JSON in it: Spark parses that here, and finds
    it valid.
    """
    kinds = {field.name: field.kind for field in decoder.fields if field.kind.holds("variant")}
    return frame.withColumns({name: _parsed(frame[quoted(name)], kind) for name, kind in kinds.items()})


def _parsed(column: Column, kind: Kind) -> Column:
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

    if not kind.holds("variant"):
        return column
    if kind == VARIANT:
        return F.parse_json(column)
    if kind.name == "array":
        return F.transform(column, lambda one: _parsed(one, kind.of[0]))
    if kind.name == "map":
        return F.transform_values(column, lambda _, one: _parsed(one, kind.of[1]))
    fields = (_parsed(column[field.name], field.kind).alias(field.name) for field in kind.fields)
    return F.when(column.isNotNull(), F.struct(*fields))


def _number(frame: DataFrame, branches: Sequence[Branch]) -> Column:
    """The number of the branch that a row belongs to."""
    from pyspark.sql import functions

    last = functions.lit(len(branches) - 1)
    numbered = [*enumerate(branches)][:-1]
    return reduce(
        lambda rest, one: functions.when(_fits(frame, one[1]), functions.lit(one[0])).otherwise(rest),
        reversed(numbered),
        last,
    )


def _fits(frame: DataFrame, branch: Branch) -> Column:
    conditions = []
    if branch.source:
        conditions.append(_is_of(frame, branch.source))
    if branch.content_type:
        conditions.append(_has_type(frame["content_type"], branch.content_type))
    return reduce(lambda one, other: one & other, conditions)


def _is_of(frame: DataFrame, source: str) -> Column:
    """A replayed dead letter is decoded like the source that it first came from."""
    from pyspark.sql import functions

    parsed, segment = Source.parse(source), frame["segment"]
    if parsed.form is not Form.CONNECTOR:
        return segment == functions.lit(parsed.segment)
    replayed = segment.startswith(OUTPUT_PREFIX) & segment.contains(f"/{REPLAY_PREFIX}")
    here = segment.startswith(connector_segment(parsed.name, 0).removesuffix("0"))
    return here | (replayed & (frame["source"] == functions.lit(parsed.name)))


def _has_type(content_type: Column, pattern: str) -> Column:
    """Ignores parameters (`; charset=…`) and case. False without a content type."""
    from pyspark.sql import functions

    kind = functions.lower(functions.trim(functions.substring_index(content_type, ";", 1)))
    if pattern in ("*", "*/*"):
        return content_type.isNotNull()
    fits = kind.startswith(pattern[:-1]) if pattern.endswith("/*") else kind == functions.lit(pattern)
    return functions.coalesce(fits, functions.lit(False))
