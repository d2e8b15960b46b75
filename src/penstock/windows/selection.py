"""What a window operator takes of a frame: checked, and under names of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.column import LETTER, LETTER_FIELDS
from penstock.windows.engine.plan import BUCKET, TIME
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US
from penstock.windows.measures import Measure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

    from penstock.windows.aggregates import Aggregate
    from penstock.windows.measures import ColumnLike

KEY, INPUT, TIE, CARRIED = "k", "v", "o", "c"
"""What the names of columns begin with: keys, inputs of aggregates, what tells ties apart, what late rows keep."""

PLACE = ("segment", "offset")
"""Where an event is stored: a row that still says so need not carry its bytes."""

TIES = ("stream_id", "message_id")
"""Which event it is, in its source."""

_OF_EVENTS = ("key", "source", "stream", "stream_id", "message_id")
_BYTES = ("binary", "string")
_PLAIN = (
    "string binary boolean tinyint smallint int bigint float double decimal date timestamp timestamp_ntz char varchar"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`frame` has the columns t, b, then those of each kind by number, then `letter` if the given frame had one."""

    frame: DataFrame
    keys: tuple[StructField, ...]
    """As the user knows them; their columns are k0, k1, …"""
    aggregates: Mapping[str, Aggregate]
    """By the name of their result, reading those columns."""
    carried: tuple[str, ...]
    """Which field of a letter each of the columns c0, c1, … is."""

    @property
    def fields(self) -> StructType:
        return self.frame.schema


def choose(
    frame: DataFrame,
    keys: Sequence[ColumnLike],
    measures: Mapping[str, Measure],
    event_time: str,
    buckets: int,
    *,
    late: bool,
    placed: bool,
) -> Chosen:
    """`late`: whether late rows are kept, so that every row must bring along what a letter needs; otherwise only those
    without an event time do. `placed`: whether all rows say where their event is stored, if they have such columns.
    Raises RequestError for columns that are missing, or of types that cannot be used.
    """
    from pyspark.sql import functions as F  # noqa: N812  as PySpark's own documentation writes it

    time = _time(frame, event_time)
    key_columns = [_column(frame, key) for key in keys]
    key_fields = tuple(frame.select(*key_columns).schema.fields) if key_columns else ()
    _check_keys(key_fields)
    micros = F.unix_micros(time)
    time_us = F.when(micros.between(TIME_MIN_US, TIME_MAX_US), micros)
    columns = {TIME: time_us, BUCKET: _bucket(key_columns, buckets)}
    columns |= {f"{KEY}{number}": column for number, column in enumerate(key_columns)}
    inputs = _Inputs(frame)
    aggregates = {name: inputs.take(measure) for name, measure in measures.items()}
    carried = _carried(frame, placed=placed)
    for number, column in enumerate(carried.values()):
        columns[f"{CARRIED}{number}"] = column if late else F.when(time_us.isNull(), column)
    columns |= inputs.columns
    if LETTER in frame.columns:
        columns[LETTER] = frame[LETTER]
    chosen = frame.select(*(column.alias(name) for name, column in columns.items()))
    return Chosen(frame=chosen, keys=key_fields, aggregates=aggregates, carried=tuple(carried))


class _Inputs:
    """Columns for aggregates, each once where they are named alike."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._named: dict[tuple[str, bool], str] = {}
        self.columns: dict[str, Column] = {}

    def take(self, measure: Measure) -> Aggregate:
        """The aggregate, reading these columns."""
        names = [self._name(column, hashed=measure.hashed) for column in measure.columns]
        return measure.aggregate.reading(*names, *(self._order() if measure.aggregate.ordered else ()))

    def _name(self, column: ColumnLike, *, hashed: bool) -> str:
        from pyspark.sql import functions as F  # noqa: N812

        known = self._named.get((column, hashed)) if isinstance(column, str) else None
        if known is not None:
            return known
        found = _column(self._frame, column)
        name = f"{INPUT}{len(self.columns)}"
        self.columns[name] = F.when(found.isNotNull(), F.xxhash64(found)) if hashed else found
        if isinstance(column, str):
            self._named[column, hashed] = name
        return name

    def _order(self) -> list[str]:
        """An event's place in time, and among those of the same time."""
        kinds = dict(self._frame.dtypes)
        ties = [name for name in TIES if kinds.get(name) == "bigint"]
        self.columns |= {f"{TIE}{name}": self._frame[name] for name in ties}
        return [TIME, *(f"{TIE}{name}" for name in ties)]


def _bucket(keys: Sequence[Column], buckets: int) -> Column:
    """Equal keys have equal hashes, also 0.0 and -0.0, and all NaN."""
    from pyspark.sql import functions as F  # noqa: N812

    return (F.pmod(F.xxhash64(*keys), F.lit(buckets)) if keys else F.lit(0)).cast("int")


def _time(frame: DataFrame, name: str) -> Column:
    column = _column(frame, name)
    kind = frame.select(column).dtypes[0][1]
    if kind == "timestamp_ntz":
        raise RequestError(
            f"`{name}` is a timestamp_ntz: it says what a clock showed, and not when that was",
            f"Say in which zone: withColumn({name!r}, to_utc_timestamp({name!r}, 'Europe/Berlin')).",
        )
    if kind != "timestamp":
        raise RequestError(
            f"`{name}` is {kind}, not a timestamp",
            f"Make it one: withColumn({name!r}, timestamp_millis({name!r})), or name the column: event_time='…'.",
        )
    return column


def _column(frame: DataFrame, given: ColumnLike) -> Column:
    """Raises RequestError with the nearest name there is."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(given) if isinstance(given, str) else given
    if isinstance(given, str) and given in frame.columns:
        return F.col("`" + given.replace("`", "``") + "`")
    try:
        frame.select(column)
    except AnalysisException as error:
        near = get_close_matches(str(given), frame.columns, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise RequestError(
            f"{given!r} cannot be taken of the frame: {str(error).splitlines()[0]}",
            f"{hint}It has: {', '.join(frame.columns)}.",
        ) from None
    return column


def _check_keys(fields: Sequence[StructField]) -> None:
    for field in fields:
        kind = field.dataType.simpleString()
        if kind.partition("(")[0] not in _PLAIN.split():
            raise RequestError(
                f"the key `{field.name}` is {kind}, which cannot be a key",
                "Use columns of plain types: a struct's fields one by one, or to_json(…) of an array or a map.",
            )


def _carried(frame: DataFrame, *, placed: bool) -> dict[str, Column]:
    """Fields of a letter, and where they are in the frame: where the event is stored, if it still says so; otherwise,
    also in rows of a join or a union that have no place, its bytes.
    """
    from pyspark.sql import functions as F  # noqa: N812

    kinds = dict(frame.dtypes)
    if all(kinds.get(name) == LETTER_FIELDS[name] for name in PLACE):
        place = {name: frame[name] for name in PLACE}
        nowhere = F.isnull(place["segment"]) | F.isnull(place["offset"])
        return place if placed else place | {"value": F.when(nowhere, _bytes(frame))}
    fields = {name: frame[name] for name in _OF_EVENTS if kinds.get(name) == LETTER_FIELDS[name]}
    return fields | {"value": _bytes(frame)}


def _bytes(frame: DataFrame) -> Column:
    """The event's own, or the JSON of the row where there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    if dict(frame.dtypes).get("value") in _BYTES:
        return F.coalesce(frame["value"].cast("binary"), F.lit(b""))
    whole = F.struct(*(frame["`" + name.replace("`", "``") + "`"] for name in frame.columns if name != LETTER))
    return F.to_json(whole, {"ignoreNullFields": "false"}).cast("binary")
