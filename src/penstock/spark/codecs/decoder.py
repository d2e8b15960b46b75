"""Decodes frames of events: each codec adds columns, and events that it cannot decode become dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.protocol.stored.names import OUTPUT_PREFIX, REPLAY_PREFIX, Form, Source, connector_segment
from penstock.spark.codecs.codec import AS_IT_IS, CODECS, Branch
from penstock.spark.codecs.encoder import DATA, TEXT
from penstock.spark.codecs.expressions import decoded, prepared, wrong
from penstock.spark.dead_letters.column import LETTER
from penstock.spark.dead_letters.frame import fields_of, letter_of, taken
from penstock.spark.outputs import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

BRANCH = "__branch"
_GIVEN, _PARSED = "__given", "__parsed"
_WITH_SCHEMA = frozenset(name for name, about in CODECS.items() if about.takes_schema)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """`frame` has the decoded columns, which `columns` names, and the internal column BRANCH."""

    frame: DataFrame
    columns: tuple[str, ...]
    branches: Sequence[Branch]
    of_branch: Sequence[tuple[str, ...]]
    """For each branch, the columns that it sets."""

    def public(self) -> DataFrame:
        """The frame for users, without internal columns."""
        return self.frame.drop(BRANCH)


def decode(frame: DataFrame, branches: Sequence[Branch]) -> Decoded:
    """Decode each row by the first branch that matches it. Events whose codec cannot decode them become dead letters.
    Raises RequestError for schemas that conflict.
    """
    schemas = [_schema(branch) for branch in branches]
    given = [_columns(frame, branch, schema) for branch, schema in zip(branches, schemas, strict=True)]
    kinds = _kinds(given)
    staged = frame.withColumn(BRANCH, _number(frame, branches))
    coded = {n: str(branch.codec) for n, branch in enumerate(branches) if branch.codec not in (None, AS_IT_IS)}
    staged = staged.withColumns({f"{_GIVEN}{n}": _given(staged, n, codec, schemas[n]) for n, codec in coded.items()})
    staged = staged.withColumns(
        {f"{_PARSED}{n}": decoded(codec, staged[f"{_GIVEN}{n}"], schemas[n]) for n, codec in coded.items()}
    )
    columns = [_merged(staged, name, kind, given, schemas).alias(name) for name, kind in kinds.items()]
    letter = (
        [_letter(frame, staged, branches, schemas).alias(LETTER)] if any(b.codec != AS_IT_IS for b in branches) else []
    )
    before = [staged[quoted(name)] for name in (*frame.columns, BRANCH)]
    return Decoded(staged.select(*before, *columns, *letter), tuple(kinds), branches, [tuple(one) for one in given])


def _schema(branch: Branch) -> StructType | None:
    return fields_of(branch.schema) if branch.schema is not None and branch.codec in _WITH_SCHEMA else None


def _columns(frame: DataFrame, branch: Branch, schema: StructType | None) -> dict[str, DataType]:
    """The columns that the branch adds. If a field would hide one of the event's own columns, all go into `data`."""
    from pyspark.sql.types import StringType, VariantType

    match branch.codec:
        case None | "binary":
            return {}
        case "string":
            return {TEXT: StringType()}
    if schema is None:
        return {DATA: VariantType()}
    if taken(schema.fieldNames(), [*frame.columns, LETTER, "port"]) is not None:
        return {DATA: schema}
    return {field.name: field.dataType for field in schema}


def _kinds(given: Sequence[dict[str, DataType]]) -> dict[str, DataType]:
    found: dict[str, DataType] = {}
    for columns in given:
        for name, kind in columns.items():
            if found.setdefault(name, kind) != kind:
                raise RequestError(
                    f"`{name}` would be {found[name].simpleString()} and {kind.simpleString()}",
                    "Use schemas that agree for the connectors of this pipeline, or a separate input for each.",
                )
    return found


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


def _given(staged: DataFrame, number: int, codec: str, schema: StructType | None) -> Column:
    from pyspark.sql import functions

    return prepared(codec, functions.when(staged[BRANCH] == number, staged["value"]), schema)


def _merged(
    staged: DataFrame,
    name: str,
    kind: DataType,
    given: Sequence[dict[str, DataType]],
    schemas: Sequence[StructType | None],
) -> Column:
    """The column's value from the row's own branch: those of all other branches are null."""
    from pyspark.sql import functions

    found = []
    for number, columns in enumerate(given):
        if name in columns:
            parsed, schema = staged[f"{_PARSED}{number}"], schemas[number]
            is_whole = schema is None or kind == schema
            found.append(_without_mark(parsed, schema) if is_whole else parsed.getField(name))
    return found[0] if len(found) == 1 else functions.coalesce(*found)


def _without_mark(parsed: Column, schema: StructType | None) -> Column:
    from pyspark.sql import functions

    if schema is None:
        return parsed
    fields = (parsed.getField(name).alias(name) for name in schema.fieldNames())
    return functions.when(parsed.isNotNull(), functions.struct(*fields))


def _letter(
    frame: DataFrame, staged: DataFrame, branches: Sequence[Branch], schemas: Sequence[StructType | None]
) -> Column:
    from pyspark.sql import functions

    reason = functions.lit(None).cast("string")
    for number, branch in enumerate(branches):
        if branch.codec == AS_IT_IS:
            continue
        mine = staged[BRANCH] == number
        if branch.codec is None:
            reason = functions.when(mine, _no_codec(staged)).otherwise(reason)
        else:
            bad = mine & staged[f"{_PARSED}{number}"].isNull()
            problem = wrong(str(branch.codec), staged[f"{_GIVEN}{number}"], schemas[number])
            reason = functions.when(bad, _about_value(problem)).otherwise(reason)
    return functions.when(reason.isNotNull(), letter_of(frame, reason))


def _about_value(problem: Column) -> Column:
    """Never null: a row without a reason would not become a dead letter."""
    from pyspark.sql import functions

    return functions.concat(functions.lit("`value` "), functions.coalesce(problem, functions.lit("cannot be decoded")))


def _no_codec(staged: DataFrame) -> Column:
    from pyspark.sql import functions

    content_type = functions.coalesce(staged["content_type"], functions.lit("none given"))
    return functions.concat(functions.lit("no codec for its content type ("), content_type, functions.lit(")"))
