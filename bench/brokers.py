"""Connectors to brokers, beside the plain client library in the way that its documentation shows it: the same messages
from and to the same real server, on this machine. A broker that is not installed is left out.

What is measured is the CPU time of this process: with a connector that includes the store, with the plain library only
the library.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aio_pika
import nats
import paho.mqtt.client as paho
from nats.js import JetStreamContext
from paho.mqtt.enums import CallbackAPIVersion

from bench.formats import Case
from penstock.connectors.api import Connector
from penstock.connectors.mqtt.connector import Mqtt
from penstock.connectors.nats.connector import Nats
from penstock.connectors.rabbitmq import RabbitMq
from penstock.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMqServer, find
from penstock.testing.frame import Frame, Setup

VALUE = b'{"id": 12345, "name": "item 17", "price": 3.25, "at": "2026-01-02T03:04:05Z"}'
AT_ONCE = 1000
WAIT_SECONDS = 120.0

_numbers = count(1)


class Flow(ABC):
    """One connector and its plain library, with the same server. Each measurement has an event loop of its own."""

    connector: type[Connector[Any]]

    def __init__(self, server: Broker, folder: Path, events: int) -> None:
        self.server = server
        self.events = events
        self.values = [VALUE] * events
        self._folder = folder

    def cases(self) -> Iterator[Case]:
        size, name = len(VALUE) * self.events, self.connector.about.name
        reading, writing = Measured(self, is_source=True), Measured(self, is_source=False)
        yield Case(f"in {name}", size, reading.ours, reading.plain, reading.before, reading.after, self.events)
        yield Case(f"out {name}", size, writing.ours, writing.plain, writing.before, writing.after, self.events)

    def frame(self, config: Mapping[str, Any]) -> Frame:
        return Frame(self._folder / f"data{next(_numbers)}", self.connector, config, Setup(ack="durable"))

    @abstractmethod
    def config(self, name: str, *, is_source: bool) -> Mapping[str, Any]:
        """Of the connector; `name` is of one measurement."""

    @abstractmethod
    async def prepare(self, name: str, *, is_source: bool) -> None:
        """What is read, or where it is written to."""

    @abstractmethod
    async def read(self, name: str) -> None:
        """All messages, with the plain library."""

    @abstractmethod
    async def write(self, name: str) -> None: ...


@dataclass(slots=True)
class Measured:
    """The work of one case."""

    flow: Flow
    is_source: bool
    name: str = ""
    runner: asyncio.Runner | None = None
    frame: Frame | None = None

    def before(self, is_ours: bool) -> None:
        self.name = f"bench{next(_numbers)}"
        self.runner = asyncio.Runner()
        self.runner.run(self._begin(is_ours))

    async def _begin(self, is_ours: bool) -> None:
        await self.flow.prepare(self.name, is_source=self.is_source)
        if is_ours:
            self.frame = self.flow.frame(self.flow.config(self.name, is_source=self.is_source))
            await self.frame.start()  # it connects when the loop runs: as it is measured
            if not self.is_source:
                await self.frame.connected()

    def ours(self) -> None:
        assert self.runner is not None
        self.runner.run(self._pass())

    async def _pass(self) -> None:
        frame, events = self.frame, self.flow.events
        assert frame is not None
        if self.is_source:
            await frame.until(lambda: frame.instance.host.counters.events >= events, "the last event", WAIT_SECONDS)
            return
        for start in range(0, events, AT_ONCE):
            last = frame.give(None, self.flow.values[start : start + AT_ONCE])
        await frame.until(lambda: frame.has_left(last), "the last value", WAIT_SECONDS)

    def plain(self) -> None:
        assert self.runner is not None
        self.runner.run(self.flow.read(self.name) if self.is_source else self.flow.write(self.name))

    def after(self, is_ours: bool) -> None:  # noqa: ARG002
        assert self.runner is not None
        frame, self.frame = self.frame, None
        if frame is not None:
            self.runner.run(frame.stop())
        self.runner.close()


class NatsFlow(Flow):
    connector = Nats
    server: NatsServer

    def config(self, name: str, *, is_source: bool) -> Mapping[str, Any]:
        both = {"servers": [self.server.url], "stream": name}
        return both if is_source else {**both, "subject": name}

    async def prepare(self, name: str, *, is_source: bool) -> None:
        client = await nats.connect(self.server.url)
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[name])
        if is_source:
            await self._publish(stream, name)
        await client.close()

    async def _publish(self, stream: JetStreamContext, name: str) -> None:
        for start in range(0, self.events, AT_ONCE):
            acks = [await stream.publish_async(name, value) for value in self.values[start : start + AT_ONCE]]
            await asyncio.gather(*acks)

    async def read(self, name: str) -> None:
        client = await nats.connect(self.server.url)
        reading = await client.jetstream().pull_subscribe(name, durable="plain")
        got = 0
        while got < self.events:
            messages = await reading.fetch(AT_ONCE)
            for message in messages:
                await message.ack()
            got += len(messages)
        await client.close()

    async def write(self, name: str) -> None:
        client = await nats.connect(self.server.url)
        await self._publish(client.jetstream(), name)
        await client.close()


class MqttFlow(Flow):
    """The plain client works in its thread, as most programs use it."""

    connector = Mqtt

    def config(self, name: str, *, is_source: bool) -> Mapping[str, Any]:
        both = {"host": "127.0.0.1", "port": self.server.port, "client_id": name}
        return {**both, "topics": [name]} if is_source else {**both, "topic": name}

    async def prepare(self, name: str, *, is_source: bool) -> None:
        if is_source:
            config = {**self.config(name, is_source=True), "version": "3.1.1"}
            async with Frame(self._folder / name, Mqtt, config) as session:  # the session that the messages wait in
                await session.connected()
            await asyncio.to_thread(self._publish, name)

    def _publish(self, name: str) -> None:
        client = self._client("")
        client.loop_start()
        client.connect("127.0.0.1", self.server.port)
        for info in [client.publish(name, value, qos=1) for value in self.values]:
            info.wait_for_publish(WAIT_SECONDS)
        client.disconnect()
        client.loop_stop()

    @staticmethod
    def _client(name: str) -> paho.Client:
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=not name)
        client.max_inflight_messages_set(100)
        return client

    async def read(self, name: str) -> None:
        await asyncio.to_thread(self._read, name)

    def _read(self, name: str) -> None:
        client, received, is_over = self._client(name), [], threading.Event()

        def receive(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
            received.append(message.payload)
            if len(received) == self.events:
                is_over.set()

        client.on_message = receive
        client.connect("127.0.0.1", self.server.port)
        client.loop_start()
        is_over.wait(WAIT_SECONDS)
        client.disconnect()
        client.loop_stop()

    async def write(self, name: str) -> None:
        await asyncio.to_thread(self._publish, name)


class RabbitMqFlow(Flow):
    connector = RabbitMq

    def config(self, name: str, *, is_source: bool) -> Mapping[str, Any]:
        both = {"host": "127.0.0.1", "port": self.server.port}
        return {**both, "queue": name} if is_source else {**both, "routing_key": name}

    async def prepare(self, name: str, *, is_source: bool) -> None:
        async with await aio_pika.connect(port=self.server.port) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True)
            if is_source:
                await self._publish(channel, name)

    async def _publish(self, channel: aio_pika.abc.AbstractChannel, name: str) -> None:
        for start in range(0, self.events, AT_ONCE):
            messages = [
                aio_pika.Message(value, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                for value in self.values[start : start + AT_ONCE]
            ]
            await asyncio.gather(*(channel.default_exchange.publish(message, name) for message in messages))

    async def read(self, name: str) -> None:
        async with await aio_pika.connect(port=self.server.port) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=AT_ONCE)
            queue = await channel.declare_queue(name, durable=True)
            got = 0
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    got += 1
                    if got == self.events:
                        return

    async def write(self, name: str) -> None:
        async with await aio_pika.connect(port=self.server.port) as connection:
            await self._publish(await connection.channel(), name)


Flows = Sequence[tuple[type[Flow], type[Broker]]]

FLOWS: Flows = (
    (NatsFlow, NatsServer),
    (MqttFlow, Mosquitto),
    (RabbitMqFlow, RabbitMqServer),
)


@contextmanager
def broker_cases(events: int, flows: Flows = FLOWS) -> Iterator[list[Case]]:
    """The servers run while it is entered."""
    with tempfile.TemporaryDirectory(prefix="penstock-brokers-") as folder, ExitStack() as running:
        cases: list[Case] = []
        for flow, server in flows:
            if find(server.program) is not None:
                own = Path(folder) / server.program
                own.mkdir()
                cases += flow(running.enter_context(server(own)), own, events).cases()
        yield cases
