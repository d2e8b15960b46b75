"""The connector that `parquet`, `delta` and `iceberg` are made from."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from penstock.connectors.api import Connector
from penstock.connectors.lake.options import LakeOptions
from penstock.connectors.permissions import Permissions
from penstock.connectors.tables import SchemaOf

if TYPE_CHECKING:
    from penstock.connectors.lake.sink import MakeTable
    from penstock.connectors.sink_api import VotingSink

O = TypeVar("O", bound=LakeOptions)  # noqa: E741  options


class LakeConnector(Connector[O], ABC):
    """The path is text, because it may be in a bucket."""

    @classmethod
    def check_permitted(cls, options: O, permissions: Permissions) -> None:
        super().check_permitted(options, permissions)
        if options.directory is not None:
            permissions.check_path(options.directory)
        else:
            permissions.check_store(options.path)

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":
        from penstock.connectors.lake.sink import LakeSink
        from penstock.connectors.threaded import Threaded

        return Threaded(LakeSink(self.options, name, self.tables(), schema), name)

    @abstractmethod
    def tables(self) -> "MakeTable":
        """What opens a table. Imports the library of its kind, which is needed only where a sink runs."""
