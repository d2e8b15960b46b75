"""`nats`: a JetStream stream as a source, a subject as a sink."""

from dataclasses import replace
from urllib.parse import SplitResult

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, ShownBy
from penstock.connectors.nats.options import NatsOptions
from penstock.connectors.sink_api import NonVotingSink
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import Place, UrlForm, at_server
from penstock.core.types import Guarantee

_PORT = 4222


def subject(parts: SplitResult) -> Place:
    """`nats://HOST:PORT/SUBJECT`"""
    found = at_server(parts, _PORT, "subject")
    host = f"[{found.host}]" if ":" in found.host else found.host
    return Place({"servers": [f"nats://{host}:{found.port}"], "subject": found.name}, found.query)


class Nats(Connector[NatsOptions]):
    about = About(
        "nats",
        "NATS JetStream: reads a stream exactly once, and publishes to a subject.",
        NatsOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            resumes=True,
            own_event_times=True,
            takes_epochs=True,
            interceptors=frozenset(),
            on_stream_started="Opens every stream. The port `in` is exactly-once with `exclusive: true`, and otherwise "
            "at-least-once.",
        ),
        extra="nats",
        example={"servers": ["nats://127.0.0.1:4222"], "stream": "ORDERS", "filter": "orders.*.new"},
        url=UrlForm(
            written="nats://HOST[:PORT]/SUBJECT",
            place=subject,
            fields=("servers", "subject"),
            credentials="Name a file: credentials=FILE.",
        ),
        shown_by=ShownBy(
            source="tests/connectors/brokers/test_nats.py::test_every_message_is_published_once_although_worker_and_server_are_killed",
            sink="tests/connectors/brokers/test_nats.py::test_every_message_is_published_once_although_worker_and_server_are_killed",
        ),
    )

    @classmethod
    def capabilities(cls, options: NatsOptions) -> Capabilities:
        found = replace(cls.about.capabilities, own_event_times=options.event_time == "server")
        if not options.subject:
            return replace(found, sink=None, takes_epochs=False)
        return found if options.exclusive else replace(found, sink=Guarantee.AT_LEAST_ONCE)

    def make_sink(self, name: str, schema: SchemaOf) -> NonVotingSink:  # noqa: ARG002
        from penstock.connectors.nats.sink import NatsSink

        return NatsSink(self.options, name)

    async def run(self, host: Host) -> None:
        from penstock.connectors.nats.connection import connected
        from penstock.connectors.nats.source import Source

        if not host.has_out:  # a sink has its own connection
            await super().run(host)
            return
        async with connected(self.options) as connection:
            await Source(connection, self.options, host).run()
        if not host.is_draining:
            raise Lost(f"{connection.where} has closed the connection")
