"""`rabbitmq`: a queue as a source, an exchange as a sink, over AMQP 0.9.1.

The library's robust mode is not used: a lost connection ends `run`, and the frame decides when to connect again.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast
from urllib.parse import SplitResult

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing, ShownBy, StreamGone
from penstock.connectors.intake import Intake, Received, bounded
from penstock.connectors.sockets import ClientTls, HostName, client_context
from penstock.connectors.url_forms import Place, UrlForm, at_server
from penstock.connectors.values import SomeSeconds
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection
    from aiormq.abc import DeliveredMessage
    from aiormq.channel import Channel

KEY = "{key}"
"""Stands for the key of a row in the routing key of a sink."""

PUBLISHED_AT_ONCE = 500
"""Values that are published before the first of them is confirmed."""

SHORT_BYTES_MAX = 255
"""A limit of the protocol, for names and routing keys."""

_PORT = 5672
_CLOSE_SECONDS = 2.0

logging.getLogger("aiormq.connection").setLevel(logging.CRITICAL)  # it logs what it also raises

ShortName = Annotated[str, Field(max_length=SHORT_BYTES_MAX)]


class Binding(Options):
    exchange: Annotated[ShortName, Field(min_length=1)]
    """The exchange, which must exist."""
    routing_key: ShortName = ""
    """Which of its messages the queue gets."""


class Declaration(Options):
    durable: bool = True
    """Whether the queue survives a restart of the broker."""
    type: Literal["classic", "quorum"] = "classic"
    """The type of the queue; `quorum` for a replicated one."""
    bindings: Annotated[list[Binding], Field(max_length=1000)] = Field(default_factory=list)
    """The exchanges that the queue gets messages from."""


class RabbitMqOptions(Options):
    """The source is at-least-once: a message is acknowledged when it is stored and, with `ack: checkpoint`, processed.
    What was not acknowledged when the worker or the broker was killed is delivered again, marked as `redelivered` in
    its metadata; a message has no id that Penstock could rely on. The queue must be durable, and messages persistent,
    if they are to survive a restart of the broker. With `ack: checkpoint`, at most `prefetch` messages are processed in
    an epoch.

    The sink is at-least-once: values count as delivered when the broker has confirmed them. A value that is sent again
    has the same `message_id`.
    """

    host: HostName
    """The broker."""
    port: Annotated[int, Field(ge=1, le=65535)] = _PORT
    """Its port; usually 5671 with TLS."""
    virtual_host: str = "/"
    """The virtual host."""
    user: str = "guest"
    """The user."""
    password: str = Field(default="guest", repr=False)
    """The user's password, such as `${file:/run/secrets/rabbitmq}`."""
    queue: ShortName = ""
    """The queue that the source reads. Without it there is no port `out`."""
    declare: Declaration | None = None
    """Declare the queue, which otherwise must exist, and bind it. An existing queue with other properties is an
    error."""
    prefetch: Annotated[int, Field(ge=1, le=65_535)] = 5000
    """The most messages that the broker sends before they are acknowledged."""
    exchange: ShortName | None = None
    """For the sink: the exchange, which must exist. By default the broker's own, whose routing keys are names of
    queues. Without `exchange` and `routing_key` there is no port `in`."""
    routing_key: ShortName = ""
    """The routing key of values, such as `alarms` or `alarms.{key}`."""
    mandatory: bool = True
    """Whether a value that no queue gets is a dead letter. Otherwise the broker drops it."""
    persistent: bool = True
    """Whether durable queues keep the values across a restart of the broker."""
    tls: ClientTls | None = None
    """Encrypt the connection. `{}` trusts the system's authorities."""
    heartbeat: Annotated[SomeSeconds, Field(ge=1, le=3600)] = 30.0
    """A broker that has been silent for this long is considered lost."""
    timeout: SomeSeconds = 10.0
    """For connecting, and for each answer of the broker."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tls is not None and self.tls.server_name:
            raise ValueError("tls.server_name cannot be used here: write the name of the certificate as host")
        if not self.queue and not self.publishes:
            raise ValueError("set queue for a source, exchange or routing_key for a sink, or both")
        if self.declare is not None and not self.queue:
            raise ValueError("declare needs queue")
        return self

    @property
    def publishes(self) -> bool:
        return self.exchange is not None or bool(self.routing_key)


def routing_key(parts: SplitResult) -> Place:
    """`rabbitmq://HOST:PORT/ROUTING-KEY`"""
    found = at_server(parts, _PORT, "routing key")
    return Place({"host": found.host, "port": found.port, "routing_key": found.name}, found.query)


class RabbitMq(Connector[RabbitMqOptions]):
    """One connection for both ports, with a channel for each."""

    about = About(
        "rabbitmq",
        "RabbitMQ (AMQP 0.9.1): reads a queue, and publishes to an exchange.",
        RabbitMqOptions,
        Capabilities(
            source=Guarantee.AT_LEAST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            sends_messages=True,
            on_stream_started="Opens every stream. All are closed while there is no connection.",
        ),
        extra="amqp",
        example={"host": "127.0.0.1", "user": "penstock", "password": "${RABBITMQ_PASSWORD}", "queue": "orders"},
        url=UrlForm(
            written="rabbitmq://HOST[:PORT]/ROUTING-KEY",
            place=routing_key,
            fields=("host", "port", "routing_key"),
            credentials="Use a reference: password=${file:PATH}.",
        ),
        shown_by=ShownBy(
            source="tests/connectors/brokers/test_rabbitmq.py::test_nothing_is_lost_although_worker_and_broker_are_killed",
            sink="tests/connectors/brokers/test_rabbitmq.py::test_nothing_is_lost_although_worker_and_broker_are_killed",
        ),
    )

    def __init__(self, options: RabbitMqOptions) -> None:
        super().__init__(options)
        self._where = f"rabbitmq://{options.host}:{options.port}"
        self._publishing: Channel | None = None

    @classmethod
    def capabilities(cls, options: RabbitMqOptions) -> Capabilities:
        return replace(
            cls.about.capabilities,
            source=Guarantee.AT_LEAST_ONCE if options.queue else None,
            sink=Guarantee.AT_LEAST_ONCE if options.publishes else None,
        )

    async def run(self, host: Host) -> None:
        async with self._connection() as connection:
            gone = asyncio.get_running_loop().create_future()
            _when_closed(connection, gone)
            if self.options.publishes:
                self._publishing = await self._open_publishing(connection, gone)
            if self.options.queue and host.has_out:
                await self._read(connection, gone, host)
            else:
                host.connected()
                await self._raise_when(gone)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator["AbstractConnection"]:
        import aio_pika

        options = self.options
        with self._errors():
            connection = await aio_pika.connect(
                host=options.host,
                port=options.port,
                login=options.user,
                password=str(options.password),
                virtualhost=options.virtual_host,
                ssl=options.tls is not None,
                ssl_context=client_context(options.tls),
                timeout=options.timeout,
                heartbeat=round(options.heartbeat),
                client_properties={"connection_name": "penstock"},
            )
        try:
            yield connection
        finally:
            self._publishing = None
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of the library into Lost."""
        from aiormq.exceptions import AMQPError, ChannelInvalidStateError

        try:
            yield
        except TimeoutError as error:
            raise Lost(f"{self._where} does not answer") from error
        except (AMQPError, ChannelInvalidStateError, OSError) as error:
            raise Lost(f"{self._where}: {_text(error)}") from error

    async def _raise_when(self, gone: "asyncio.Future[str]") -> None:
        reason = await asyncio.shield(gone)
        raise Lost(f"the connection to {self._where} is gone: {reason}")

    async def _channel(
        self, connection: "AbstractConnection", gone: "asyncio.Future[str]", *, confirms: bool
    ) -> "Channel":
        channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        with self._errors():
            await channel.initialize(timeout=self.options.timeout)
            found = cast("Channel", await channel.get_underlay_channel())
        _when_closed(channel, gone)
        return found

    # The port `out`.

    async def _read(self, connection: "AbstractConnection", gone: "asyncio.Future[str]", host: Host) -> None:
        options = self.options
        channel = await self._channel(connection, gone, confirms=False)

        async def acknowledge(tags: Sequence[int]) -> None:
            with self._errors():
                await channel.basic_ack(tags[-1], multiple=True, wait=False)

        async def stop() -> None:
            with self._errors():
                await channel.basic_cancel(consumer.consumer_tag or "", timeout=options.timeout)

        intake: Intake[int] = Intake(host, acknowledge)

        async def receive(message: "DeliveredMessage") -> None:
            intake.add(_received(message, options.queue, host))

        channel.on_consumer_cancel_callbacks.add(lambda _: _end(gone, f"the queue {options.queue} was deleted"))
        with self._errors():
            await self._declare(channel)
            await channel.basic_qos(prefetch_count=options.prefetch, timeout=options.timeout)
            consumer = await channel.basic_consume(options.queue, receive, timeout=options.timeout)
        host.connected()
        await intake.run(self._raise_when(gone), stop)

    async def _declare(self, channel: "Channel") -> None:
        options, declared = self.options, self.options.declare
        if declared is None:
            await channel.queue_declare(options.queue, passive=True, timeout=options.timeout)
            return
        arguments: dict[str, Any] | None = {"x-queue-type": declared.type} if declared.type != "classic" else None
        await channel.queue_declare(
            options.queue, durable=declared.durable, arguments=arguments, timeout=options.timeout
        )
        for one in declared.bindings:
            await channel.queue_bind(options.queue, one.exchange, one.routing_key, timeout=options.timeout)

    # The port `in`.

    async def _open_publishing(self, connection: "AbstractConnection", gone: "asyncio.Future[str]") -> "Channel":
        channel = await self._channel(connection, gone, confirms=True)
        if self.options.exchange:
            with self._errors():
                await channel.exchange_declare(self.options.exchange, passive=True, timeout=self.options.timeout)
        return channel

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        refused: dict[int, str] = {}
        for start in range(0, len(outgoing.values), PUBLISHED_AT_ONCE):
            places = range(start, min(start + PUBLISHED_AT_ONCE, len(outgoing.values)))
            answers = await asyncio.gather(*(self._publish(outgoing, place) for place in places))
            refused |= {place: answer for place, answer in zip(places, answers, strict=True) if answer}
        if refused:
            host.count("refused_values", len(refused))
            raise StreamGone(next(iter(refused.values())), places=[*refused])

    async def _publish(self, outgoing: Outgoing, place: int) -> str:
        """Returns why the broker refuses the value for good; "" if it has it. Raises Lost."""
        from aiormq import spec
        from aiormq.exceptions import PublishError

        options = self.options
        key = _key_of(options.routing_key, outgoing, place)
        if len(key.encode()) > SHORT_BYTES_MAX:
            return f"the routing key {key[:50]!r}… is longer than {SHORT_BYTES_MAX} bytes"
        properties = spec.Basic.Properties(
            delivery_mode=2 if options.persistent else 1, message_id=_message_id(outgoing, place)
        )
        if self._publishing is None:
            raise Lost(f"{self._where} is not connected")
        try:
            with self._errors():
                await self._publishing.basic_publish(
                    outgoing.values[place],
                    exchange=options.exchange or "",
                    routing_key=key,
                    properties=properties,
                    mandatory=options.mandatory,
                    timeout=options.timeout,
                    wait=False,
                )
        except Lost as lost:
            if isinstance(lost.__cause__, PublishError):
                return f"no queue receives values with the routing key {key!r}"
            raise
        return ""


def _key_of(template: str, outgoing: Outgoing, place: int) -> str:
    if KEY not in template:
        return template
    return template.replace(KEY, outgoing.keys[place].decode(errors="replace") if outgoing.keys else "")


def _message_id(outgoing: Outgoing, place: int) -> str | None:
    """The same when the value is sent again; None: the library makes one up. Its end is what makes it unique."""
    from_end = len(outgoing.values) - 1 - place
    return f"{outgoing.name}-{from_end}"[-SHORT_BYTES_MAX:] if outgoing.name else None


def _received(message: "DeliveredMessage", queue: str, host: Host) -> Received[int]:
    properties, delivery = message.header.properties, message.delivery
    metadata: dict[str, Any] = {"routing_key": message.routing_key or ""}
    if getattr(delivery, "redelivered", False):
        metadata["redelivered"] = True
    more: dict[str, Any] = {
        name: value
        for name in ("message_id", "content_type", "correlation_id", "reply_to")
        if (value := getattr(properties, name, None))
    }
    if properties.headers:
        more["headers"] = _plain(properties.headers)
    return Received(message.body, bounded(metadata, more, host), queue, message.delivery_tag)


def _plain(value: Any) -> Any:
    """What can be stored as metadata."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _when_closed(closing: Any, gone: "asyncio.Future[str]") -> None:
    """The library calls it with the connection or channel, and the error."""

    def closed(_: Any, error: BaseException | None = None) -> None:
        _end(gone, _text(error) if error is not None else "it was closed")

    closing.close_callbacks.add(closed)


def _end(gone: "asyncio.Future[str]", reason: str) -> None:
    if not gone.done():
        gone.set_result(reason)


def _text(error: BaseException) -> str:
    """For people: errors of the broker have its text as their second argument."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    arguments = [str(one) for one in error.args if one]
    reason = getattr(error, "reason", "")
    text = arguments[1] if len(arguments) > 1 and not isinstance(error, OSError) else str(error)
    return text or str(reason) or type(error).__name__
