"""`mqtt`: subscriptions as a source, a topic as a sink."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Outgoing, Pause, ShownBy, StreamGone
from penstock.connectors.intake import Intake, Received, bounded
from penstock.connectors.mqtt.options import KEY, MqttOptions, is_topic
from penstock.connectors.mqtt.session import Publication, Session
from penstock.connectors.url_forms import Place, UrlForm, at_server
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

log = logging.getLogger(__name__)

ARRIVED_MAX = 20_000
"""Messages without an acknowledgement (QoS 0 and 2) that wait to be stored: beyond it the connection is not read."""

_PORT = 1883


def topic(parts: SplitResult) -> Place:
    """`mqtt://HOST:PORT/TOPIC`"""
    found = at_server(parts, _PORT, "topic")
    return Place({"host": found.host, "port": found.port, "topic": found.name}, found.query)


class Mqtt(Connector[MqttOptions]):
    """One connection for both ports."""

    about = About(
        "mqtt",
        "MQTT 5 and 3.1.1: subscribes to topics, and publishes to them.",
        MqttOptions,
        Capabilities(
            source=Guarantee.AT_LEAST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            pauses=Pause.WHOLE,
            own_event_times=False,
            sends_messages=True,
            on_stream_started="Opens every stream. All are closed while there is no connection. With `qos: 0`, the "
            "sink is at-most-once; so is the source with `qos: 0` or `2`, and without `client_id` or "
            "`session_expiry`.",
        ),
        extra="mqtt",
        example={"host": "127.0.0.1", "client_id": "penstock-sensors", "topics": ["sensors/+/temperature"]},
        url=UrlForm(written="mqtt://HOST[:PORT]/TOPIC", place=topic, fields=("host", "port", "topic")),
        shown_by=ShownBy(
            source="tests/connectors/brokers/test_mqtt.py::test_nothing_is_lost_although_worker_and_broker_are_killed",
            sink="tests/connectors/brokers/test_mqtt.py::test_nothing_is_lost_although_worker_and_broker_are_killed",
        ),
    )

    def __init__(self, options: MqttOptions) -> None:
        super().__init__(options)
        self._session: Session | None = None

    @classmethod
    def capabilities(cls, options: MqttOptions) -> Capabilities:
        keeps = options.qos == 1 and options.has_session
        source = Guarantee.AT_LEAST_ONCE if keeps else Guarantee.AT_MOST_ONCE
        sink = Guarantee.AT_LEAST_ONCE if options.qos else Guarantee.AT_MOST_ONCE
        claims = {f"client id {options.client_id} at {options.host}:{options.port}"} if options.client_id else set()
        return replace(
            cls.about.capabilities,
            source=source if options.topics else None,
            sink=sink if options.topic else None,
            claims=frozenset(claims),
        )

    # The port `out`.

    async def run(self, host: Host) -> None:
        is_source = bool(self.options.topics) and host.has_out
        intake: Intake[int] = Intake(host, self._acknowledge, self._resume)
        session = Session(self.options, lambda message: self._receive(message, intake, host))
        try:
            had_session = await session.open()
            self._session = session
            if is_source:
                self._report_session(had_session, host)
                await session.subscribe(self.options.topics)
            host.connected()
            await intake.run(session.gone(), self._stop_reading)
        finally:
            self._session = None
            await session.close()

    def _report_session(self, had_session: bool, host: Host) -> None:
        if self.options.has_session and not had_session:
            host.count("new_sessions")
            log.warning(
                "%s: the broker has no session %s: it has kept no messages for it", host.name, self.options.client_id
            )

    def _receive(self, message: "MQTTMessage", intake: Intake[int], host: Host) -> None:
        """The library's callback, for each message."""
        options = self.options
        if message.retain and not options.retained:
            self._discard(message)
            return
        topic = _topic_of(message)
        metadata = bounded({"topic": topic} | ({"retain": True} if message.retain else {}), _more(message), host)
        stream = topic if options.streams == "per-topic" else options.host
        token = message.mid if options.acknowledges and message.qos == 1 else None
        intake.add(Received(bytes(message.payload), metadata, stream, token))
        if token is None and len(intake) >= ARRIVED_MAX and self._session is not None:
            self._session.pause_reading()

    def _discard(self, message: "MQTTMessage") -> None:
        if self._session is not None and message.qos == 1 and self.options.acknowledges:
            self._session.acknowledge([message.mid])

    def _resume(self) -> None:
        if self._session is not None:
            self._session.resume_reading()

    async def _stop_reading(self) -> None:
        """What the broker sends now is not acknowledged, and comes again."""
        if self._session is not None and not self.options.acknowledges and not self.options.topic:
            self._session.pause_reading()

    async def _acknowledge(self, packet_ids: Sequence[int]) -> None:
        if self._session is not None:
            self._session.acknowledge(packet_ids)

    # The port `in`.

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        if self._session is None:
            raise Lost(f"mqtt://{self.options.host}:{self.options.port} is not connected")
        values, refused = self._publications(outgoing)
        found = await self._session.publish([one for _, one in values])
        refused |= {values[place][0]: reason for place, reason in found.items()}
        if refused:
            host.count("refused_values", len(refused))
            raise StreamGone(next(iter(refused.values())), places=sorted(refused))

    def _publications(self, outgoing: Outgoing) -> tuple[list[tuple[int, Publication]], dict[int, str]]:
        """With their places; and the reasons of those that cannot be published."""
        template = self.options.topic
        if KEY not in template:
            return [(place, Publication(template, value)) for place, value in enumerate(outgoing.values)], {}
        found: list[tuple[int, Publication]] = []
        refused: dict[int, str] = {}
        for place, value in enumerate(outgoing.values):
            key = outgoing.keys[place].decode(errors="replace") if outgoing.keys else ""
            name = template.replace(KEY, key)
            if key and is_topic(name):
                found.append((place, Publication(name, value)))
            else:
                refused[place] = f"with the key {key!r}, {name!r} is not a valid topic"
        return found, refused


def _topic_of(message: "MQTTMessage") -> str:
    try:
        return message.topic
    except UnicodeDecodeError:
        return "invalid UTF-8"


def _more(message: "MQTTMessage") -> Mapping[str, Any]:
    """The properties of version 5 that people use."""
    properties = message.properties
    if properties is None or properties.isEmpty():  # type: ignore[no-untyped-call]
        return {}
    found: dict[str, Any] = {}
    if pairs := getattr(properties, "UserProperty", None):
        found["user_properties"] = dict(pairs)
    for name, attribute in (("content_type", "ContentType"), ("response_topic", "ResponseTopic")):
        if (value := getattr(properties, attribute, None)) is not None:
            found[name] = value
    return found
