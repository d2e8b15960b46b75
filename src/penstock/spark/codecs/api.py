"""What a codec is, for authors: bytes of events to columns, and rows to bytes, on whole Arrow arrays.

A package offers a codec by an entry point:

    [project.entry-points."penstock.codecs"]
    my-format = "my_package.my_module:MyCodec"

It runs in Spark's Python workers, in the reader of a source and in the writer of a sink. Nothing in it needs Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from penstock.core.errors import RequestError
from penstock.core.kinds import Fields
from penstock.spark.codecs.codec import About

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The events that were decoded, as one array for each field: in order, without those that failed."""

    arrays: Sequence[pa.Array]
    failed: Mapping[int, str] = field(default_factory=dict)
    """Row → why it cannot be decoded, as the end of a sentence that begins with "`value` ": `is not valid JSON`."""


class TooMuch(Exception):
    """The columns of these events, which are several, would take too much memory together. They are decoded in parts,
    and one that is too large alone fails.
    """


Decode: TypeAlias = "Callable[[pa.BinaryArray], Columns]"
"""From the values of events, none of which is null. Raises nothing for bad bytes, whatever they are: they fail. It may
raise TooMuch.
"""

Encode: TypeAlias = "Callable[[pa.RecordBatch], pa.BinaryArray]"
"""From rows to values, none of which is null. Raises RequestError for a row that the format cannot represent: it ends
the query."""


class Codec(ABC):
    """Created once for each input or port of a task. It keeps nothing from one batch to the next. `options` are those
    of `about.options`, valid; None if it has none.
    """

    about: ClassVar[About]

    def __init__(self, options: Any = None) -> None:
        model = self.about.model() if options is None else None
        self.options: Any = options if model is None else model()

    @abstractmethod
    def fields(self, schema: Fields | None) -> Fields:
        """The columns into which it decodes: usually those of the schema. Raises RequestError for a schema that it
        cannot use, and for None if it needs one.
        """

    @abstractmethod
    def decoder(self, schema: Fields | None) -> Decode:
        """Returns what decodes events into these fields."""

    @abstractmethod
    def encoder(self, columns: pa.Schema) -> Encode:
        """Returns what encodes rows with these columns. Raises RequestError for columns that it cannot write."""

    def check(self) -> None:  # noqa: B027  most options are checked by their model
        """Whether it can work with its options: `penstock check` calls it. It reads files, and contacts nothing. Raises
        NotInstalled; NotHere for a file that may be where tasks run; and RequestError.
        """


class NotHere(RequestError):
    """A file is missing on this machine, and may be where tasks run."""


def check_decoded(codec: Codec, schema: Fields | None) -> None:
    """Raises RequestError if the codec needs a schema, or takes none."""
    about = codec.about
    if schema is None and about.needs_schema:
        raise RequestError(
            f"{about.name} cannot be decoded without a schema", "Add one to the connector: schema: id int, …"
        )
