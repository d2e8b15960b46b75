"""Events that only pass through a pipeline: the same bytes where that will do, otherwise in another codec."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from penstock.codecs.coding import AS_IT_IS
from penstock.codecs.decoding import BRANCH, Decoded
from penstock.codecs.encoding import encoded
from penstock.codecs.leaving import Outlet, attributes, placed
from penstock.spark.leaving_rows import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TEXTS = ("json", "csv", "string")
"""Codecs whose bytes are texts."""


def passed(decoded: Decoded, outlets: Mapping[str, Outlet], port: str) -> DataFrame:
    """With the sink's columns: value, key, origin, event time and content type stay. What its codec could not decode is
    a letter. Raises RequestError where one codec cannot write what another has read.
    """
    frame = decoded.frame
    codecs = {codec for _, codec in outlets[port].targets}
    alike = all(same_bytes(branch.codec, codec) for branch in decoded.branches for codec in codecs)
    same = set(attributes(frame))
    return placed(frame, outlets, port, lambda given, codec: _value(given, decoded, codec), same, is_encoded=not alike)


def same_bytes(codec: str | None, wanted: str) -> bool:
    """Whether what is read with one codec can leave as it is where another one is wanted."""
    if AS_IT_IS in (codec, wanted) or codec in (None, wanted):
        return True
    return wanted == "string" and codec in _TEXTS


def _value(frame: DataFrame, decoded: Decoded, codec: str) -> Column:
    from pyspark.sql import functions

    def of_branch(rest: Column, number: int) -> Column:
        if same_bytes(decoded.branches[number].codec, codec):
            return rest
        names = decoded.of_branch[number]
        columns = {name: frame[quoted(name)] for name in names}
        written = encoded(codec, columns, {name: frame.schema[name].dataType for name in names})
        return functions.when(frame[BRANCH] == number, written).otherwise(rest)

    return reduce(of_branch, range(len(decoded.branches)), frame["value"])
