"""`null`: discards everything."""

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, Outgoing, ShownBy
from penstock.core.types import Guarantee


class NullOptions(Options):
    """There are none."""


class Null(Connector[NullOptions]):
    about = About(
        name="null",
        text="Discards everything that it is sent; as a source it sends nothing.",
        options=NullOptions,
        capabilities=Capabilities(
            source=Guarantee.EXACTLY_ONCE, sink=Guarantee.EXACTLY_ONCE, own_event_times=False, has_codec=False
        ),
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_small_ones.py::TestNull",
            sink="tests/connectors/conformance/test_small_ones.py::TestNull",
        ),
    )

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        host.count("discarded", len(outgoing.values))
