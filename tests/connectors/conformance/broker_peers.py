"""Real brokers, each with a client that publishes what becomes events, and receives what leaves."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aio_pika
import nats
import paho.mqtt.client as paho
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, DeliverPolicy
from paho.mqtt.enums import CallbackAPIVersion

from penstock.testing.brokers import Mosquitto, NatsServer, RabbitMqServer
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, eventually


class BrokerLine:
    """What is published under one name. A broker accepts everything."""

    def __init__(self, publish: Callable[[bytes], Any]) -> None:
        self._publish = publish

    async def send(self, data: bytes) -> None:
        await self._publish(data)

    async def end(self) -> None: ...

    async def break_off(self) -> None: ...

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


class BrokerPeer(Peer):
    async def line(self, frame: Frame) -> Line:
        await frame.connected()
        return BrokerLine(self.publish)

    async def publish(self, data: bytes) -> None:
        raise AssertionError(f"{self} publishes {len(data)} bytes")


class NatsPeer(BrokerPeer):
    """Each line is a message: the sequence of a message is the id of one event."""

    def __init__(self, folder: Path) -> None:
        self._server = NatsServer(folder, free_port=free_port)
        self._client: Client | None = None
        self._rest = b""
        self._received: list[bytes] = []
        self._at = 0
        self._collecting: asyncio.Task[None] | None = None

    def config(self) -> Mapping[str, Any]:
        of_source = {"filter": "in.*", "start": "first"}
        of_sink = {"subject": "out", "exclusive": True}
        return {"servers": [self._server.url], "stream": "T", "timeout": "2s", **of_source, **of_sink}

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._client = await nats.connect(self._server.url, allow_reconnect=False)
        stream = self._client.jetstream()
        await eventually_added(stream)
        self._collecting = asyncio.create_task(self._collect())

    async def stop(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
            self._collecting = None
        if self._client is not None:
            await self._client.close()
            self._client = None
        await asyncio.to_thread(self._server.kill)

    async def publish(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        assert self._client is not None
        stream = self._client.jetstream()
        for future in [await stream.publish_async("in.lines", line) for line in lines]:
            await future

    async def _collect(self) -> None:
        assert self._client is not None
        stream = self._client.jetstream()
        while True:
            with suppress(NatsError):
                from_here = ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=self._at + 1, filter_subject="out"
                )
                reading = await stream.pull_subscribe("out", stream="T", config=from_here)
                while True:
                    for message in await reading.fetch(100, timeout=5):
                        self._at = message.metadata.sequence.stream
                        self._received.append(message.data + b"\n")

    def received(self) -> bytes:
        return b"".join(self._received)


async def eventually_added(stream: Any) -> None:
    """JetStream is ready a moment after the server accepts connections."""
    for _ in range(100):
        with suppress(NatsError):
            await stream.add_stream(name="T", subjects=["in.*", "out"])
            return
        await asyncio.sleep(0.05)
    raise AssertionError("there is no JetStream")


class MqttPeer(BrokerPeer):
    """What is sent at once is a message. Its client receives what leaves, also what was published while it was away."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._server = Mosquitto(folder, free_port=free_port)
        self._options = options
        self._client: paho.Client | None = None
        self._received: list[bytes] = []

    def config(self) -> Mapping[str, Any]:
        both = {"host": "127.0.0.1", "port": self._server.port, "timeout": "2s"}
        return {**both, "client_id": "tested", "topics": ["in/#"], "topic": "out", **self._options}

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2, client_id="peer", clean_session=False)
        subscribed = asyncio.Event()
        loop = asyncio.get_running_loop()
        client.on_subscribe = lambda *_: loop.call_soon_threadsafe(subscribed.set)  # type: ignore[assignment]
        client.on_message = lambda _client, _data, message: self._received.append(bytes(message.payload))
        client.on_connect = lambda *_: client.subscribe("out", 1)  # type: ignore[assignment]
        client.connect("127.0.0.1", self._server.port)
        client.loop_start()
        await asyncio.wait_for(subscribed.wait(), SECONDS_MAX)

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            await asyncio.to_thread(client.loop_stop)
            await asyncio.to_thread(self._server.save)
        await asyncio.to_thread(self._server.kill)

    async def publish(self, data: bytes) -> None:
        assert self._client is not None
        published = self._client.publish("in/lines", data, qos=1)
        await eventually(published.is_published)

    def received(self) -> bytes:
        return b"".join(self._received)


class RabbitMqPeer(BrokerPeer):
    """With queues of its own on a broker that tests share: it is down when the way to it is."""

    def __init__(self, server: RabbitMqServer, name: str) -> None:
        self._server = server
        self._name = name
        self._proxy = CuttingProxy(server.port, cuts=0)
        self._way: AsyncExitStack | None = None
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._received: list[bytes] = []

    def config(self) -> Mapping[str, Any]:
        both = {"host": "127.0.0.1", "port": self._proxy.port, "timeout": "2s"}
        return {**both, "queue": f"{self._name} in", "declare": {}, "routing_key": f"{self._name} out"}

    async def start(self) -> None:
        self._connection = await aio_pika.connect(port=self._server.port)
        self._channel = channel = await self._connection.channel()
        await channel.declare_queue(f"{self._name} in", durable=True)
        queue = await channel.declare_queue(f"{self._name} out", durable=True)
        await queue.consume(self._receive, no_ack=True)
        self._way = AsyncExitStack()
        await self._way.enter_async_context(self._proxy.run())

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        self._received.append(message.body)

    async def stop(self) -> None:
        way, self._way = self._way, None
        connection, self._connection = self._connection, None
        if way is not None:
            await way.aclose()
        if connection is not None:
            await connection.close()

    async def publish(self, data: bytes) -> None:
        assert self._channel is not None
        persistent = aio_pika.Message(data, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(persistent, f"{self._name} in")

    def received(self) -> bytes:
        return b"".join(self._received)
