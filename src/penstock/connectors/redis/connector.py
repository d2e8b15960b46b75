"""`redis`: streams of Redis are read and written, exactly once."""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, ShownBy
from penstock.connectors.redis.options import RedisOptions
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import UrlForm, redis_stream
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from penstock.connectors.redis.source import Known
    from penstock.connectors.sink_api import NonVotingSink

_ALL = Capabilities(
    source=Guarantee.EXACTLY_ONCE,
    sink=Guarantee.EXACTLY_ONCE,
    resumes=True,
    takes_epochs=True,
    own_event_times=True,
    on_stream_started="Opens every stream. The port `in` writes an epoch after it is committed.",
    interceptors=frozenset(),
)


class RedisStreams(Connector[RedisOptions]):
    about = About(
        "redis",
        "Redis streams: reads entries as events, and writes rows as entries.",
        RedisOptions,
        _ALL,
        extra="redis",
        example={"host": "redis.example", "streams": ["orders"]},
        url=UrlForm(
            written="redis://HOST:PORT/STREAM",
            place=redis_stream,
            fields=("host", "port", "stream"),
            credentials="Use a connector in YAML, with a reference to the password.",
        ),
        shown_by=ShownBy(
            source="tests/connectors/brokers/test_source_kills.py::test_every_event_is_stored_once_and_in_order_although_the_worker_is_killed_and_the_broker_goes_away",
            sink="tests/application/test_database_sinks.py::test_redis_and_sql_have_each_event_once_though_the_worker_and_their_servers_are_killed",
        ),
    )

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        self._known: dict[str, Known] = {}
        """How far streams were read, for the next `run`."""

    @classmethod
    def capabilities(cls, options: RedisOptions) -> Capabilities:
        return replace(
            _ALL,
            source=Guarantee.EXACTLY_ONCE if options.streams else None,
            sink=Guarantee.EXACTLY_ONCE if options.stream else None,
            takes_epochs=bool(options.stream),
            resumes=bool(options.streams),
            own_event_times=options.timestamps,
        )

    def make_sink(self, name: str, schema: SchemaOf) -> "NonVotingSink":  # noqa: ARG002
        from penstock.connectors.redis.sink import RedisSink

        return RedisSink(self.options, name)

    async def run(self, host: Host) -> None:
        if not self.options.streams or not host.has_out:
            await super().run(host)
            return
        from penstock.connectors.redis.source import RedisSource

        await RedisSource(self.options, host, self._known).run()
