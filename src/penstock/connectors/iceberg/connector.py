"""`iceberg`: an Iceberg table in an SQL catalogue, by two-phase commit; the epoch is in the snapshot's properties."""

from functools import partial
from typing import TYPE_CHECKING

from penstock.connectors.api import About, ShownBy
from penstock.connectors.iceberg.options import IcebergOptions
from penstock.connectors.lake.connector import LakeConnector
from penstock.connectors.lake.options import CAPABILITIES
from penstock.connectors.permissions import Permissions
from penstock.connectors.url_forms import UrlForm, path

if TYPE_CHECKING:
    from penstock.connectors.lake.sink import MakeTable


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

    def tables(self) -> "MakeTable":
        from penstock.connectors.iceberg.table import IcebergSnapshots

        return partial(IcebergSnapshots, self.options)
