"""`kafka`: topics of Kafka are read and written, exactly once."""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, ShownBy
from penstock.connectors.kafka.options import KafkaOptions
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import UrlForm, topic
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from penstock.connectors.sink_api import NonVotingSink

_ALL = Capabilities(
    source=Guarantee.EXACTLY_ONCE,
    sink=Guarantee.EXACTLY_ONCE,
    resumes=True,
    takes_epochs=True,
    own_event_times=True,
    on_stream_started="Opens every stream. The port `in` writes each epoch in a Kafka transaction, after the epoch is "
    "committed. It is at-least-once without `transactions`, and so is the port `out` with `assignment: group`.",
    interceptors=frozenset(),
)


class Kafka(Connector[KafkaOptions]):
    about = About(
        "kafka",
        "Kafka topics: each partition is a stream, and each epoch that is written is a transaction.",
        KafkaOptions,
        _ALL,
        extra="kafka",
        example={"brokers": ["kafka:9092"], "topics": ["orders"], "group": "shop"},
        url=UrlForm(
            written="kafka://HOST:PORT/TOPIC",
            place=topic,
            fields=("brokers", "topic"),
            credentials="Use a connector in YAML, with `sasl:` and a reference to the password.",
        ),
        shown_by=ShownBy(
            source="tests/connectors/brokers/test_source_kills.py::test_every_event_is_stored_once_and_in_order_although_the_worker_is_killed_and_the_broker_goes_away",
            sink="tests/connectors/brokers/test_kafka_sink.py::test_a_worker_that_is_killed_in_an_epoch_leaves_nothing_that_is_written_twice",
        ),
    )

    @classmethod
    def capabilities(cls, options: KafkaOptions) -> Capabilities:
        source = Guarantee.EXACTLY_ONCE if options.assignment == "all" else Guarantee.AT_LEAST_ONCE
        sink = Guarantee.EXACTLY_ONCE if options.transactions else Guarantee.AT_LEAST_ONCE
        return replace(
            _ALL,
            source=source if options.topics else None,
            sink=sink if options.topic else None,
            takes_epochs=bool(options.topic),
            resumes=bool(options.topics),
            own_event_times=options.timestamps,
        )

    def make_sink(self, name: str, schema: SchemaOf) -> "NonVotingSink":  # noqa: ARG002
        from penstock.connectors.kafka.sink import KafkaSink

        return KafkaSink(self.options, name)

    async def run(self, host: Host) -> None:
        if not self.options.topics or not host.has_out:
            await super().run(host)
            return
        from penstock.connectors.kafka.source import KafkaSource

        await KafkaSource(self.options, host).run()
