"""`connector-protocol`: programs that speak the connector protocol.

Port `out`: programs connect to the worker's connector port under this connector's name, as `penstock send` does. Port
`in`: the worker connects to a program that accepts epochs by two-phase commit, such as penstock.client.Sink.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Pause, ShownBy
from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import UrlForm, address
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from penstock.connectors.sink_api import VotingSink


class ConnectorProtocol(Connector[ConnectorProtocolOptions]):
    """The worker's connector port serves its port `out`, under the connector's name."""

    about = About(
        "connector-protocol",
        "Programs that speak the connector protocol: with penstock.client, or in any language.",
        ConnectorProtocolOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            takes_epochs=True,
            votes=True,
            resumes=True,
            own_event_times=True,
            pauses=Pause.SESSION,
            on_stream_started="Opens every stream while the program can be reached.",
            interceptors=frozenset(),
            partitions=True,
        ),
        example={"host": "127.0.0.1", "port": 7200, "cookie_file": "/etc/penstock/cookie"},
        url=UrlForm(
            written="connector://HOST:PORT",
            place=address,
            fields=("host", "port"),
            credentials="Put the cookie into a file: cookie_file=FILE.",
        ),
        shown_by=ShownBy(
            source="tests/ingest/sessions/test_crashes.py",
            sink="tests/delivery/matrix/test_matrix.py",
        ),
    )

    @classmethod
    def capabilities(cls, options: ConnectorProtocolOptions) -> Capabilities:
        known = cls.about.capabilities
        return known if options.port is not None else replace(known, sink=None, takes_epochs=False, votes=False)

    @classmethod
    def source_name(cls, options: ConnectorProtocolOptions, name: str) -> str | None:  # noqa: ARG003
        return name

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":  # noqa: ARG002
        from penstock.connectors.connector_protocol.sink import ConnectorSink

        # Sinks that exist use the instance as a file name; "@" is not part of any name.
        return ConnectorSink(self.options, name.replace("/", "@"))
