"""Options of `mqtt`, and what a topic may be."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.sockets import ClientTls, HostName
from penstock.connectors.values import Seconds, SomeSeconds

KEY = "{key}"
"""Stands for the key of a row in the topic of a sink."""

TOPIC_BYTES_MAX = 65_535
"""A limit of the protocol."""


def is_topic(text: str) -> bool:
    """Whether it can be published to."""
    return bool(text) and not any(one in text for one in "+#\0") and len(text.encode()) <= TOPIC_BYTES_MAX


def is_filter(text: str) -> bool:
    """Whether it can be subscribed to: `+` and `#` are whole levels, and `#` is the last one."""
    levels = text.split("/")
    wild = [level for level in levels if "+" in level or "#" in level]
    ends = "#" not in levels[:-1]
    whole = all(level in ("+", "#") for level in wild)
    return bool(text) and "\0" not in text and len(text.encode()) <= TOPIC_BYTES_MAX and ends and whole


def _filter(given: str) -> str:
    if not is_filter(given):
        raise ValueError("expected a topic, with + for one level and # for all that follow")
    return given


def _topic(given: str) -> str:
    if given and not is_topic(given.replace(KEY, "key")):
        raise ValueError("expected a topic without wildcards; {key} stands for the key of a row")
    return given


def _version(given: Any) -> Any:
    return "5" if given == 5 and not isinstance(given, bool) else given


class MqttOptions(Options):
    """The source is at-least-once with `qos: 1` and a persistent session, which needs a `client_id`: a message is
    acknowledged to the broker when it is stored and, with `ack: checkpoint`, processed. What was not acknowledged when
    the worker or the broker was killed is sent again. With `qos: 2` the broker must be answered before a message is
    stored: nothing comes twice, but what is in transit is lost if the worker is killed, and so it is at-most-once, like
    `qos: 0`. Messages that were published with a lower QoS keep it.

    A broker sends only so many messages before it waits for acknowledgements: with Mosquitto, that is
    `max_inflight_messages` (20 by default) and `receive_maximum`. With `ack: checkpoint`, an epoch has no more messages
    than that: raise the limit, or use `ack: durable`. While a client is away, Mosquitto drops its messages beyond
    `max_queued_messages`.

    The sink is at-least-once with `qos: 1` or `2`: values count as delivered when the broker has acknowledged them.
    """

    host: HostName
    """The broker."""
    port: Annotated[int, Field(ge=1, le=65535)] = 1883
    """Its port; usually 8883 with TLS."""
    version: Annotated[Literal["5", "3.1.1"], BeforeValidator(_version)] = "5"
    """The version of the protocol."""
    client_id: Annotated[str, Field(max_length=256)] = ""
    """The name of the session at the broker: no other client may use it there. Without it, the broker keeps nothing for
    the source while it is away."""
    topics: Annotated[list[Annotated[str, AfterValidator(_filter)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    """What the source subscribes to, such as `[sensors/+/temperature]`. `$share/GROUP/…` shares the messages with
    others. Without topics there is no port `out`."""
    streams: Literal["one", "per-topic"] = "one"
    """`one`: all messages are one stream. `per-topic`: each topic is a stream. A stream ends with the connection."""
    qos: Literal[0, 1, 2] = 1
    """The QoS of the subscriptions, and of published values."""
    session_expiry: Seconds = 86_400.0
    """How long the broker keeps the session while the source is away (version 5; in 3.1.1 the broker decides). 0: no
    session, and at-most-once."""
    retained: bool = True
    """Whether to receive the retained messages of the topics when the session begins."""
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] = 10_000
    """The most messages that the broker may send before they are acknowledged (version 5)."""
    topic: Annotated[str, AfterValidator(_topic)] = ""
    """For the sink: where values are published, such as `alarms` or `alarms/{key}`. Without it there is no port `in`.
    """
    retain: bool = False
    """Whether the broker retains the last value that is published to a topic."""
    user: str = ""
    """The user, if the broker requires one."""
    password: str = Field(default="", repr=False)
    """The user's password, such as `${file:/run/secrets/mqtt}`."""
    tls: ClientTls | None = None
    """Encrypt the connection. `{}` trusts the system's authorities."""
    keep_alive: Annotated[SomeSeconds, Field(le=65_535)] = 30.0
    """A broker that has not answered for this long is considered lost."""
    timeout: SomeSeconds = 10.0
    """For connecting, and for each answer of the broker."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tls is not None and self.tls.server_name:
            raise ValueError("tls.server_name cannot be used here: write the name of the certificate as host")
        if not self.topics and not self.topic:
            raise ValueError("set topics for a source, topic for a sink, or both")
        if self.password and not self.user:
            raise ValueError("password needs user")
        return self

    @property
    def has_session(self) -> bool:
        """Whether the broker keeps messages for the source while it is away."""
        return bool(self.client_id and self.topics and self.session_expiry)

    @property
    def acknowledges(self) -> bool:
        """Whether messages are acknowledged by the source, after they are stored. With QoS 2 the library has sent the
        first of two answers already, and cannot continue with the second one after a restart.
        """
        return self.qos == 1
