"""RabbitMQ against a real broker, which is killed like the worker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection

from penstock.connectors.rabbitmq import RabbitMq
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from penstock.testing.brokers import RabbitMqServer
from penstock.testing.frame import Frame
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.scene import killed_scene
from tests.connectors.brokers.servers import QUICKLY
from tests.support.waiting import SECONDS_MAX, eventually


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "set queue for a source"),
        ({"queue": "q" * 256}, "queue"),
        ({"routing_key": "a", "declare": {}}, "declare needs queue"),
        ({"queue": "q", "tls": {"server_name": "n"}}, "server_name cannot be used"),
    ],
)
def test_options_that_cannot_work_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        make_connector("rabbitmq", {"host": "h", **config})


@asynccontextmanager
async def channel_of(server: RabbitMqServer) -> AsyncIterator[AbstractChannel]:
    async with await connected(server) as connection:
        yield await connection.channel()


async def connected(server: RabbitMqServer) -> AbstractConnection:
    """A broker that has just been restarted answers before its virtual host is open."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await aio_pika.connect(host="127.0.0.1", port=server.port)
            except ConnectionError:
                await asyncio.sleep(0.1)


async def publish(channel: AbstractChannel, queue: str, values: Sequence[bytes], **more: Any) -> None:
    for value in values:
        message = aio_pika.Message(value, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **more)
        await channel.default_exchange.publish(message, queue)


async def received(channel: AbstractChannel, queue: str, count: int) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """This many, and everything after them that is there."""
    found: list[aio_pika.abc.AbstractIncomingMessage] = []
    async with asyncio.timeout(SECONDS_MAX):
        place = await channel.get_queue(queue)
        while len(found) < count:
            message = await place.get(no_ack=True, fail=False)
            if message is not None:
                found.append(message)
            else:
                await asyncio.sleep(0.02)
    return found


def options_of(server: RabbitMqServer, **options: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port, "timeout": "5s", **options}


async def test_a_queue_is_declared_and_bound_and_properties_are_kept(
    rabbitmq_server: RabbitMqServer, tmp_path: Path
) -> None:
    binding = {"exchange": "amq.topic", "routing_key": "orders.#"}
    config = options_of(rabbitmq_server, queue="declared", declare={"bindings": [binding]})
    async with channel_of(rabbitmq_server) as channel, Frame(tmp_path, RabbitMq, config) as frame:
        await frame.connected()
        exchange = await channel.get_exchange("amq.topic")
        headers: Any = {"number": 1, "nested": {"list": ["a", True]}}
        message = aio_pika.Message(b"value", message_id="m1", content_type="text/plain", headers=headers)
        await exchange.publish(message, "orders.new")
        (event,) = await frame.until_stored(1)
    assert event.value == b"value"
    assert event.metadata == {
        "routing_key": "orders.new",
        "message_id": "m1",
        "content_type": "text/plain",
        "headers": {"number": 1, "nested": {"list": ["a", True]}},
    }


async def test_a_missing_queue_or_exchange_and_a_wrong_password_are_reported(
    rabbitmq_server: RabbitMqServer, tmp_path: Path
) -> None:
    for name, options, text in (
        ("queue", {"queue": "missing"}, "no queue 'missing'"),
        ("exchange", {"exchange": "missing"}, "no exchange 'missing'"),
        ("password", {"queue": "missing", "password": "wrong"}, "ACCESS_REFUSED"),
    ):
        async with Frame(tmp_path / name, RabbitMq, options_of(rabbitmq_server, **options)) as frame:
            await frame.until(lambda text=text: text in frame.instance.host.status().reason, text)  # type: ignore[misc]


async def test_a_queue_that_is_deleted_is_noticed(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    async with channel_of(rabbitmq_server) as channel:
        await channel.declare_queue("deleted", durable=True)
        async with Frame(tmp_path, RabbitMq, options_of(rabbitmq_server, queue="deleted")) as frame:
            await frame.connected()
            await channel.queue_delete("deleted")
            await frame.until(lambda: "no queue 'deleted'" in frame.instance.host.status().reason)


async def test_a_value_that_no_queue_gets_is_a_dead_letter(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    config = options_of(rabbitmq_server, routing_key="no such queue")
    async with Frame(tmp_path, RabbitMq, config) as frame:
        epoch = frame.give(None, [b"one", b"two"])
        await frame.until(lambda: frame.has_left(epoch))
        assert frame.dead_letters == 2


async def test_a_value_has_the_same_id_when_it_is_published_again(
    rabbitmq_server: RabbitMqServer, tmp_path: Path
) -> None:
    async with channel_of(rabbitmq_server) as channel:
        await channel.declare_queue("ids", durable=True)
        for folder in ("one", "two"):  # neither knows of the other, as after a crash
            async with Frame(tmp_path / folder, RabbitMq, options_of(rabbitmq_server, routing_key="ids")) as frame:
                epoch = frame.give(None, [b"a", b"b"])
                await frame.until(lambda: frame.has_left(epoch))  # noqa: B023
        found = [(message.body, message.message_id) for message in await received(channel, "ids", 4)]
    assert found[:2] == found[2:]
    assert len(set(found)) == 2


def test_nothing_is_lost_although_worker_and_broker_are_killed(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    end = options_of(rabbitmq_server)
    deployment = deployed(
        connector(
            "source", "rabbitmq", config={**end, "queue": "in", "declare": {}}, codec="binary", reconnect=QUICKLY
        ),
        connector("sink", "rabbitmq", config={**end, "routing_key": "out"}, codec="binary", reconnect=QUICKLY),
        pipeline("p"),
        link("connector/source/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/sink/in"),
    )
    values = [b"value %d" % number for number in range(900)]

    async def send(first: int, end: int) -> None:
        async with channel_of(rabbitmq_server) as channel:
            await channel.declare_queue("in", durable=True)
            await channel.declare_queue("out", durable=True)
            await publish(channel, "in", values[first:end])

    async def collect(wanted: set[bytes]) -> None:
        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            found.add(message.body)

        async with channel_of(rabbitmq_server) as channel:
            await (await channel.get_queue("out")).consume(take, no_ack=True)
            await eventually(lambda: wanted <= found, lambda: sorted(wanted - found))

    found: set[bytes] = set()
    asyncio.run(send(0, 300))
    with killed_scene(tmp_path / "data", deployment) as scene:
        asyncio.run(collect({values[0]}))
        scene.kill()  # wherever it is
        asyncio.run(send(300, 600))
        rabbitmq_server.kill()
        rabbitmq_server.start()
        asyncio.run(send(600, 900))
        asyncio.run(collect(set(values)))
    assert found == set(values)
