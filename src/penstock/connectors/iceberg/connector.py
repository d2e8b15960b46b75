"""`iceberg`: an Iceberg table in an SQL catalogue, by two-phase commit; the epoch is in the snapshot's properties."""

from typing import TYPE_CHECKING

from penstock.connectors.api import About, ShownBy
from penstock.connectors.iceberg.options import IcebergOptions
from penstock.connectors.lake.options import CAPABILITIES, LakeConnector
from penstock.connectors.permissions import Permissions
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import UrlForm, path

if TYPE_CHECKING:
    from penstock.connectors.sink_api import VotingSink


class Iceberg(LakeConnector[IcebergOptions]):
    about = About(
        "iceberg",
        "Writes rows to an Iceberg table in an SQL catalogue, an epoch as one snapshot.",
        IcebergOptions,
        CAPABILITIES,
        extra="iceberg",
        example={"path": "lake/orders", "catalog": "sqlite:///lake/catalog.db", "table": "shop.orders"},
        url=UrlForm(written="iceberg:PATH", place=path, fields=("path",)),
        shown_by=ShownBy(
            sink="tests/connectors/stores/test_lake_contract.py::TestIceberg",
        ),
    )

    @classmethod
    def check_permitted(cls, options: IcebergOptions, permissions: Permissions) -> None:
        super().check_permitted(options, permissions)
        if options.catalog_file is not None:
            permissions.check_path(options.catalog_file)

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":
        from penstock.connectors.iceberg.table import IcebergSnapshots
        from penstock.connectors.lake.sink import LakeSink
        from penstock.connectors.threaded import Threaded

        options = self.options
        return Threaded(LakeSink(options, name, lambda *given: IcebergSnapshots(options, *given), schema), name)
