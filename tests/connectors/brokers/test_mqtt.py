"""MQTT against a real broker, which is killed like the worker."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.connectors.mqtt.connector import Mqtt
from penstock.connectors.mqtt.options import MqttOptions, is_filter, is_topic
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.testing.brokers import Mosquitto
from penstock.testing.frame import Frame, Setup
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.scene import killed_scene
from tests.connectors.brokers.servers import QUICKLY, need
from tests.support.ports import free_port
from tests.support.tls import CA
from tests.support.waiting import SECONDS_MAX, eventually, until

# What needs no broker.


@pytest.mark.parametrize(
    ("text", "topic", "topic_filter"),
    [
        ("a/b", True, True),
        ("a/+/c", False, True),
        ("a/#", False, True),
        ("#", False, True),
        ("a/#/c", False, False),
        ("a/b+", False, False),
        ("", False, False),
        ("a\0", False, False),
    ],
)
def test_topics_and_filters_are_those_of_the_protocol(text: str, topic: bool, topic_filter: bool) -> None:
    assert (is_topic(text), is_filter(text)) == (topic, topic_filter)


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, Guarantee.AT_LEAST_ONCE),
        ({"qos": 0}, Guarantee.AT_MOST_ONCE),
        ({"qos": 2}, Guarantee.AT_MOST_ONCE),
        ({"client_id": ""}, Guarantee.AT_MOST_ONCE),
        ({"session_expiry": 0}, Guarantee.AT_MOST_ONCE),
        ({"topics": [], "topic": "t"}, None),
    ],
)
def test_the_guarantee_of_a_source_depends_on_qos_and_session(options: dict[str, Any], source: Guarantee) -> None:
    given = {"host": "h", "client_id": "c", "topics": ["t"], **options}
    assert Mqtt.capabilities(MqttOptions.model_validate(given)).source is source


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "set topics for a source"),
        ({"topics": ["a/b#"]}, "expected a topic"),
        ({"topic": "a/#"}, "without wildcards"),
        ({"topic": "a", "password": "p"}, "password needs user"),
        ({"topic": "a", "tls": {"server_name": "n"}}, "server_name cannot be used"),
        ({"topic": "a", "version": 4}, "version"),
    ],
)
def test_options_that_cannot_work_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        make_connector("mqtt", {"host": "h", **config})


# With a broker.


@contextmanager
def client_of(server: Mosquitto, topic: str = "", *, client_id: str = "") -> Iterator[tuple[paho.Client, list[Any]]]:
    """A client, and what it receives under the topic; with a client id, also what came while it was away."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=False
    )
    received: list[Any] = []
    ready = threading.Event()
    client.on_message = lambda _client, _data, message: received.append(message)
    client.on_connect = lambda *_: client.subscribe(topic, 1) if topic else ready.set()  # type: ignore[assignment]
    client.on_subscribe = lambda *_: ready.set()
    keeps = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    keeps.SessionExpiryInterval = 3600 if client_id else 0
    client.connect("127.0.0.1", server.port, clean_start=not client_id, properties=keeps)
    client.loop_start()
    try:
        assert ready.wait(SECONDS_MAX)
        yield client, received
    finally:
        client.disconnect()
        client.loop_stop()


def publish(client: paho.Client, topic: str, *values: bytes, **more: Any) -> None:
    for published in [client.publish(topic, value, qos=1, **more) for value in values]:
        until(published.is_published)


def options_of(server: Mosquitto, **options: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port, "timeout": "5s", "client_id": "tested", **options}


async def test_topic_retain_and_properties_of_a_message_are_kept(mosquitto: Mosquitto, tmp_path: Path) -> None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("unit", "celsius")]
    properties.ContentType = "text/plain"
    with client_of(mosquitto) as (client, _):
        await asyncio.to_thread(publish, client, "in/old", b"1", retain=True)
        async with Frame(tmp_path, Mqtt, options_of(mosquitto, topics=["in/+"])) as frame:
            await frame.until_stored(1)
            await asyncio.to_thread(publish, client, "in/new", b"2", properties=properties)
            one, two = await frame.until_stored(2)
    assert (one.value, one.metadata) == (b"1", {"topic": "in/old", "retain": True})
    assert (two.value, two.metadata) == (
        b"2",
        {"topic": "in/new", "user_properties": {"unit": "celsius"}, "content_type": "text/plain"},
    )


async def test_each_topic_is_a_stream_if_the_options_say_so(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with client_of(mosquitto) as (client, _):
        config = options_of(mosquitto, topics=["in/#"], streams="per-topic", version="3.1.1")
        async with Frame(tmp_path, Mqtt, config) as frame:
            await frame.connected()
            for number in range(6):
                await asyncio.to_thread(publish, client, f"in/{number % 2}", b"%d" % number)
            events = await frame.until_stored(6)
            by_stream: dict[int, list[bytes]] = {}
            for event in events:
                by_stream.setdefault(event.stream_id, []).append(event.value)
            assert sorted(by_stream.values()) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


@pytest.mark.parametrize("qos", [0, 2])
async def test_other_levels_of_quality_are_read_and_published(mosquitto: Mosquitto, tmp_path: Path, qos: int) -> None:
    with client_of(mosquitto, "out/#") as (client, received):
        config = options_of(mosquitto, topics=["in"], topic="out/fixed", qos=qos)
        async with Frame(tmp_path, Mqtt, config) as frame:
            await frame.connected()
            published = client.publish("in", b"value", qos=qos)
            await asyncio.to_thread(published.wait_for_publish, SECONDS_MAX)
            await frame.until_stored(1)
            epoch = frame.give(None, [b"a", b"b"])
            await frame.until(lambda: frame.has_left(epoch) and len(received) == 2)
    assert [message.payload for message in received] == [b"a", b"b"]


async def test_what_is_durable_is_acknowledged_if_the_options_say_so(mosquitto: Mosquitto, tmp_path: Path) -> None:
    config = options_of(mosquitto, topics=["in"], receive_maximum=1)
    with client_of(mosquitto) as (client, _):
        async with Frame(tmp_path, Mqtt, config, Setup(ack="durable")) as frame:
            await frame.connected()
            await asyncio.to_thread(publish, client, "in", *(b"%d" % number for number in range(20)))
            await frame.until_stored(20)  # one at a time: each must have been acknowledged
            assert await frame.values() == [b"%d" % number for number in range(20)]


async def test_a_value_whose_key_is_not_a_topic_is_a_dead_letter(mosquitto: Mosquitto, tmp_path: Path) -> None:
    async with Frame(tmp_path, Mqtt, options_of(mosquitto, topic="out/{key}")) as frame:
        epoch = frame.give(None, [b"value without a key"])
        await frame.until(lambda: frame.has_left(epoch))
        assert frame.dead_letters == 1


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_value_that_is_too_large_for_the_broker_is_a_dead_letter(qos: int, tmp_path: Path) -> None:
    """Of two that differ by one byte, one just fits."""
    folder = tmp_path / "server"
    folder.mkdir()
    need(Mosquitto)
    fits = 1000 - (1 + 2) - (2 + len("out")) - (2 if qos else 0) - 1
    with Mosquitto(folder, "max_packet_size 1000", free_port=free_port) as server, client_of(server, "out") as peer:
        async with Frame(tmp_path / "data", Mqtt, options_of(server, topic="out", qos=qos)) as frame:
            epoch = frame.give(None, [b"x" * (fits + 1), b"y" * fits, b"z"])
            await frame.until(lambda: frame.has_left(epoch))
            assert frame.dead_letters == 1
        await eventually(lambda: [one.payload for one in peer[1]] == [b"y" * fits, b"z"])


async def test_a_password_and_tls_are_used(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    CA.cert_pem.write_to_path(str(folder / "ca.pem"))
    CA.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    tls = (f"certfile {folder}/server.pem", f"keyfile {folder}/server.pem")
    need(Mosquitto)
    with Mosquitto(folder, *tls, free_port=free_port) as server:
        config = options_of(server, topics=["in"], topic="in", tls={"ca": str(folder / "ca.pem")})
        async with Frame(tmp_path / "plain", Mqtt, {**config, "tls": None}) as frame:
            await frame.until(lambda: frame.instance.host.status().state == "disconnected")
        async with Frame(tmp_path / "right", Mqtt, config) as frame:
            epoch = frame.give(None, [b"x" * 100_000, *(b"%d" % number for number in range(500))])
            await frame.until(lambda: frame.has_left(epoch))
            await frame.until_stored(501)  # through itself


# Everything is killed.


def test_nothing_is_lost_although_worker_and_broker_are_killed(mosquitto: Mosquitto, tmp_path: Path) -> None:
    end = options_of(mosquitto)
    deployment = deployed(
        connector("source", "mqtt", config={**end, "topics": ["in"]}, codec="binary", reconnect=QUICKLY),
        connector("sink", "mqtt", config={**end, "client_id": "", "topic": "out"}, codec="binary", reconnect=QUICKLY),
        pipeline("p"),
        link("connector/source/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/sink/in"),
    )
    values = [b"value %d" % number for number in range(900)]
    found: set[bytes] = set()

    with killed_scene(tmp_path / "data", deployment) as scene:
        scene.until_listens("source", "sink")
        with client_of(mosquitto, "out", client_id="peer") as (client, received):
            publish(client, "in", *values[:300])
            scene.kill()  # wherever it is
            publish(client, "in", *values[300:600])
            until(lambda: {one.payload for one in received} == set(values[:600]))
            scene.stand_ins["p"].works.clear()  # so that the broker has nothing that it has not saved
            scene.until_listens("source", "sink")
            publish(client, "in", *values[600:])
            found |= {one.payload for one in received}
        mosquitto.save()
        mosquitto.kill()
        mosquitto.start()
        scene.stand_ins["p"].works.set()
        with client_of(mosquitto, "out", client_id="peer") as (_, received):
            until(lambda: found | {one.payload for one in received} == set(values))
