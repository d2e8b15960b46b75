"""The statements that make a table fit the rows of a pipeline: they create what is missing, and change nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from penstock.core.errors import RequestError

# What SQL sinks know about windows: a pane may replace others, whose rows must be deleted when its own row is inserted.
#
# A session that has fired and then grows, or is merged with another one, fires again with other bounds. Its row names
# the panes that it replaces, in the field `replaces`: a list of objects with `window_start` and `window_end`.

REPLACES = "replaces"

BOUNDS = ("window_start", "window_end")
"""The fields of the objects in `replaces`, which identify the replaced panes."""


def applies_replaces(upsert: Collection[str]) -> bool:
    """Whether rows are identified by a bound of their window: then those of replaced panes are deleted. Without
    `upsert` the table is a log of all panes, and its readers apply `replaces`.
    """
    return not {*BOUNDS}.isdisjoint(upsert)


def nullable_keys(upsert: Collection[str]) -> list[str]:
    """The keys of a window, which may be null, unlike its bounds. Null is a key like any other, but not to a unique
    index: the sinks replace such rows themselves.
    """
    return [name for name in upsert if name not in BOUNDS]


RowSchema: TypeAlias = Sequence[tuple[str, str]]
"""The fields of a port's JSON rows, in order: the name, and Spark's name of its type."""

SchemaOf: TypeAlias = Callable[[], RowSchema | None]
"""Returns the schema that the pipeline declared when it last started; None while it is not known."""

MISSING_TABLE_HINT = (
    "Create it (penstock sink ddl prints the statement), or let the sink create it: "
    "create=true in its URL, create: true in YAML."
)


UNKNOWN_ROWS_HINT = "Create the table yourself, or let the pipeline return columns without `value`."


class UnknownFields(Enum):
    """What happens to a JSON object with a field that has no column."""

    REFUSE = "refuse"
    """The sink votes no: the field would be lost."""
    IGNORE = "ignore"


def no_schema() -> None:
    """A SchemaOf for when the schema is not known."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table as it is in the database now."""

    columns: Collection[str]
    has_key: bool
    """Whether a unique index has exactly the columns of `upsert`."""
    fold: Callable[[str], str] = str
    """Makes names equal that are the same to the database."""

    def has(self, column: str) -> bool:
        return self.fold(column) in map(self.fold, self.columns)


def no_column(where: str, field: str) -> str:
    """The reason of a no vote: the value of this field would be lost."""
    return (
        f"{where}: no column for its field {field!r}; add one (penstock sink ddl prints the statement), "
        "or leave such fields out with unknown_fields=ignore"
    )


def fields_of(schema: RowSchema, upsert: Collection[str], fold: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """The fields that need a column: what the sink applies itself does not. `fold` makes names equal that are the same
    to the database. Raises RequestError for a key that is not a field.
    """
    names = [name for name, _ in schema]
    for name in upsert:
        if fold(name) not in map(fold, names):
            raise RequestError(f"upsert names {name!r}, which the rows do not have", f"They have: {', '.join(names)}.")
    return [(name, kind) for name, kind in schema if not (name == REPLACES and applies_replaces(upsert))]


def fitting(
    table: str, columns: Mapping[str, str], upsert: Sequence[str], found: FoundTable | None, index: str = ""
) -> list[str]:
    """CREATE TABLE if there is none, else what is missing. All names are quoted: `table`, those in `columns` and in
    `upsert`, and `index`, for a unique index.
    """
    keys = ", ".join(upsert)
    if found is None:
        lines = [f"  {name} {kind}" for name, kind in columns.items()] + ([f"  PRIMARY KEY ({keys})"] if upsert else [])
        body = ",\n".join(lines)
        return [f"CREATE TABLE {table} (\n{body}\n)"]
    lacking = {name: kind for name, kind in columns.items() if not found.has(name)}
    missing = [f"ALTER TABLE {table} ADD COLUMN {name} {kind}" for name, kind in lacking.items()]
    unique = f"CREATE UNIQUE INDEX {index + ' ' if index else ''}ON {table} ({keys})"
    return missing + ([unique] if upsert and not found.has_key else [])
