"""What a pipeline of an application does on Spark: decode, the user's function, encode; or nothing but pass on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Coding, branches
from penstock.spark.codecs.outputs import Outlet
from penstock.spark.source.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.application.functions import UserFunction

OUT = "out"

FUNCTION_COLUMNS = (*COLUMNS, "content_type", "metadata_json")
PASSING_COLUMNS = (*COLUMNS, "content_type")
"""What loads give: of the metadata no more than what is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """`system::passthrough`: events leave as they came, or in the codec of their sinks. What its codec cannot decode is
    a letter.
    """

    codings: Mapping[str, Coding]
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> DataFrame:
        from penstock.spark.codecs.decoder import decode
        from penstock.spark.codecs.outputs import passed

        (frame,) = inputs.values()
        return passed(decode(frame, branches(self.codings)), self.outlets, OUT)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A user's function between the codecs of its sources and those of its sinks."""

    function: UserFunction
    codings: Mapping[str, Mapping[str, Coding]]
    """By input, and by source."""
    outlets: Mapping[str, Outlet]

    def __call__(self, **inputs: DataFrame) -> Any:
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        from penstock.spark.codecs.outputs import attributes, leave, schemas
        from penstock.spark.outputs import Encoded

        frames = {port: self._arrived(port, frame) for port, frame in inputs.items()}
        given = frozenset(text for frame in frames.values() for text in attributes(frame).values())
        left = self.function.call(**{self.function.parameter(port): frame for port, frame in frames.items()})
        match left:
            case DataFrame():
                port = None if "port" in left.columns else OUT
                return Encoded(leave(left, self.outlets, port, given), schemas(left, self.outlets, port))
            case Mapping() if left and all(isinstance(frame, DataFrame) for frame in left.values()):
                ports = [leave(frame, self.outlets, self._known(port, frame), given) for port, frame in left.items()]
                united = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), ports)
                held = [schemas(frame, self.outlets, port).items() for port, frame in left.items()]
                return Encoded(united, dict(chain.from_iterable(held)))
            case DataStreamWriter():
                raise RequestError(
                    "the function gives a writer of Spark's", "Return a DataFrame, and link the port to a connector."
                )
        raise RequestError(
            f"the function gives {type(left).__name__}", "Return a DataFrame, or a dict from ports to DataFrames."
        )

    def _arrived(self, port: str, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        from penstock.spark.codecs.decoder import decode

        told = frame.withColumn("metadata", functions.try_parse_json(frame["metadata_json"])).drop("metadata_json")
        return decode(told, branches(self.codings[port])).public()

    def _known(self, port: str, frame: DataFrame) -> str:
        if "port" in frame.columns:
            raise RequestError(
                f"the rows for the port {port!r} have a column `port` of their own",
                "Drop it, or give it another name: it would be lost.",
            )
        if port not in self.outlets:
            raise RequestError(
                f"the function gives rows for the port {port!r}", f"There are: {', '.join(self.outlets)}; see outputs:."
            )
        return port
