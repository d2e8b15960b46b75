"""The rows that the sink accepts."""

from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from penstock.core.errors import RequestError
from penstock.core.suggestions import nearest
from penstock.spark.source.schema import ASKED_COLUMNS, COLUMNS

_TEXT = (BinaryType, StringType, CharType, VarcharType)
_STRING = (StringType, CharType, VarcharType)

_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_TEXT, "binary or string"),
    "key": (_TEXT, "binary or string"),
    "event_time": ((TimestampType,), "timestamp"),
    "stream": (_STRING, "string"),
    "port": (_STRING, "string"),
    "source": (_STRING, "string"),
    "stream_id": ((LongType,), "bigint"),
    "message_id": ((LongType,), "bigint"),
    "metadata": ((BinaryType,), "binary"),
}

_OF_SOURCE = {name: kind for name, kind in (COLUMNS | ASKED_COLUMNS).items() if name not in _COLUMNS}
"""The source's own columns, which the sink ignores: the position of an event, and views of its metadata. So a frame of
the source can be written unchanged. A column of the same name with another type is the user's: it is refused, not lost.
"""

_EXPECTED = "`value`, and where they are wanted " + ", ".join(
    f"`{name}` ({text})" for name, (_, text) in _COLUMNS.items() if name != "value"
)


def check_schema(schema: StructType) -> None:
    """Raises RequestError that lists all problems at once."""
    problems = [problem for field in schema.fields if (problem := _problem(field))]
    names = [field.name for field in schema.fields]
    problems += [f"`{name}` appears {names.count(name)} times" for name in _COLUMNS if names.count(name) > 1]
    if "value" not in names:
        problems.insert(0, "column `value` (binary or string) is missing")
    if problems:
        raise RequestError(
            f"these rows cannot be written: {'; '.join(problems)}",
            f"The sink accepts {_EXPECTED}. Put other columns into `value` with to_json(struct(…)), or drop them.",
        )


def _problem(field: StructField) -> str | None:
    found = field.dataType.simpleString()
    if _OF_SOURCE.get(field.name) == found:
        return None
    if field.name not in _COLUMNS:
        near = nearest(field.name.lower(), _COLUMNS)
        return f"`{field.name}` ({found}) is not a column of the sink" + (f": is it `{near}`?" if near else "")
    types, expected = _COLUMNS[field.name]
    return None if isinstance(field.dataType, types) else f"`{field.name}` is {found}, and must be {expected}"
