"""Encodes columns of a frame with a codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.spark.codecs.expressions import as_csv, as_json, packed

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

DATA, TEXT = "data", "text"
"""Columns that represent the whole event if they are the only ones: codecs return these without a schema."""

_NESTED = ("struct", "array", "map", "variant")


def encoded(codec: str, columns: Mapping[str, Column], kinds: Mapping[str, DataType]) -> Column:
    """The columns as one value, binary and never null. A single `data` column is the value itself; other columns are
    its fields. Raises RequestError for columns that the codec cannot write.
    """
    from pyspark.sql import functions

    if codec == "string":
        return functions.coalesce(_only_text(columns, kinds).cast("binary"), functions.lit(b""))
    alone = columns[DATA] if [*columns] == [DATA] and _is(kinds[DATA], *_NESTED) else None
    row = functions.struct(*(column.alias(name) for name, column in columns.items())) if alone is None else alone
    has_variant = any("variant" in kind.simpleString() for kind in kinds.values())
    match codec:
        case "json":
            return as_json(row).cast("binary")
        case "msgpack":
            return packed(as_json(row) if has_variant else row, is_json=has_variant)
        case "csv":
            _check_flat(columns, kinds)
            return as_csv(row).cast("binary")
    raise RequestError(
        f"{codec} writes bytes only, and cannot write {', '.join(columns)}",
        "Add a column `value`, or use another codec for the connector.",
    )


def _only_text(columns: Mapping[str, Column], kinds: Mapping[str, DataType]) -> Column:
    name, *others = columns
    if others or not _is(kinds[name], "string"):
        raise RequestError(
            f"string writes one text column, but the rows have: {', '.join(columns)}",
            f"Add a column `{TEXT}` (string), and drop the others.",
        )
    return columns[name]


def _check_flat(columns: Mapping[str, Column], kinds: Mapping[str, DataType]) -> None:
    for name in columns:
        if _is(kinds[name], *_NESTED, "binary"):
            raise RequestError(
                f"csv cannot write `{name}`, which is {kinds[name].simpleString()}",
                "Select plain columns, or declare them in the schema of the connector that it comes from.",
            )


def _is(kind: DataType, *names: str) -> bool:
    return kind.typeName() in names
