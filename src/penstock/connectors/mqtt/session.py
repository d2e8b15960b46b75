"""A connection to an MQTT broker: paho's client, driven by the event loop, without its threads and reconnects."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.connectors.api import Lost
from penstock.connectors.mqtt.options import MqttOptions
from penstock.connectors.sockets import client_context

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.properties import Properties

PACKETS_AT_ONCE = 200
"""Packets that are read before other tasks of the loop run."""

OPEN_MAX = 100
"""Values that are published before the first of them is acknowledged; the broker may allow fewer."""

_TICK_SECONDS = 0.5
"""Between two looks at the keep-alive."""

_CLOSE_SECONDS = 2.0
"""How long the last packets may take to be written."""

_QUOTA_EXCEEDED = 0x97
"""A reason code of the broker's: later it may accept the value."""

OnMessage = Callable[["MQTTMessage"], None]


class Publication(NamedTuple):
    topic: str
    value: bytes


class Session:
    """Everything is called in the event loop. Each step raises Lost if the broker refuses or is gone."""

    def __init__(self, options: MqttOptions, on_message: OnMessage) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self._options = options
        self._is_persistent = options.has_session
        self._is_v5 = options.version == "5"
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._packets = 0
        self._closed: asyncio.Future[str] = self._loop.create_future()
        """The reason."""
        self._connected: asyncio.Future[tuple[bool, str]] = self._loop.create_future()
        """Whether the broker had the session; why it refuses the connection."""
        self._subscribed: asyncio.Future[list[str]] = self._loop.create_future()
        """The reasons of refusals."""
        self._open: dict[int, int] = {}
        """The places of values that are not acknowledged, by packet id."""
        self._refused: dict[int, str] = {}
        self._must_wait = False
        self._open_max = OPEN_MAX
        self._packet_bytes_max: int | None = None
        """What the broker accepts; None: it has not said so."""
        self._progress = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._descriptor = -1
        self._is_reading = False
        self._client: Client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            clean_session=None if self._is_v5 else not self._is_persistent,
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_v5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=options.acknowledges,
        )

    @property
    def where(self) -> str:
        return f"mqtt://{self._options.host}:{self._options.port}"

    # Connecting.

    async def open(self) -> bool:
        """Returns whether the broker has kept the session of this client id."""
        client, options = self._client, self._options
        client.connect_timeout = options.timeout
        client.max_inflight_messages_set(0)  # `publish` limits them itself
        if options.user:
            client.username_pw_set(options.user, str(options.password) or None)
        if (context := client_context(options.tls)) is not None:
            client.tls_set_context(context)
        self._listen(client)
        await self._dial()
        self._attach()
        had_session, refusal = await self._answer(self._connected)
        assert isinstance(had_session, bool)
        if refusal:
            raise Lost(f"{self.where} refuses the connection: {refusal}")
        return had_session

    def _listen(self, client: "Client") -> None:
        client.on_message = lambda _client, _data, message: self._message(message)
        client.on_connect = self._has_connected
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._gone(str(reason))
        client.on_subscribe = self._has_subscribed
        client.on_publish = self._has_published

    async def _dial(self) -> None:
        """In a thread, because the library resolves names and connects without the loop. A connection that comes too
        late is closed.
        """
        dialling = asyncio.ensure_future(asyncio.to_thread(self._connect))
        try:
            await asyncio.wait_for(asyncio.shield(dialling), self._options.timeout)
        except BaseException as error:
            dialling.add_done_callback(self._abandon)
            if isinstance(error, asyncio.CancelledError):
                raise
            reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
            raise Lost(f"{self.where} cannot be reached: {reason}") from error

    def _connect(self) -> None:
        options = self._options
        more: dict[str, Any] = {}
        if self._is_v5:
            more = {"clean_start": not self._is_persistent, "properties": self._connect_properties()}
        self._client.connect(options.host, options.port, keepalive=max(1, round(options.keep_alive)), **more)

    def _connect_properties(self) -> "Properties":
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        found = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        found.ReceiveMaximum = self._options.receive_maximum
        if self._is_persistent:
            found.SessionExpiryInterval = min(round(self._options.session_expiry), 0xFFFF_FFFF)
        return found

    def _abandon(self, dialled: "asyncio.Future[None]") -> None:
        dialled.cancelled() or dialled.exception()
        sock = self._client.socket()
        if sock is not None:
            sock.close()

    def _attach(self) -> None:
        """From now on the loop moves the bytes."""
        client = self._client
        sock = client.socket()
        if sock is None:
            raise Lost(f"{self.where} has closed the connection")
        self._descriptor = sock.fileno()
        client.on_socket_register_write = lambda *_: self._start_writing()
        client.on_socket_unregister_write = lambda *_: self._stop_writing()
        client.on_socket_close = lambda *_: self._detach()
        self.resume_reading()
        if client.want_write():
            self._start_writing()
        self._ticking = asyncio.create_task(self._tick())

    def _start_writing(self) -> None:
        if self._descriptor >= 0:
            self._loop.add_writer(self._descriptor, self._client.loop_write)

    def _stop_writing(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)

    def _detach(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        self._is_reading = False

    async def _tick(self) -> None:
        while self._descriptor >= 0:
            await asyncio.sleep(_TICK_SECONDS)
            self._client.loop_misc()

    def _readable(self) -> None:
        """Reads until nothing more becomes a message: the loop calls again if there is more."""
        for _ in range(PACKETS_AT_ONCE):
            before = self._packets
            try:
                self._client.loop_read()
            except Exception as error:  # the library raises it for packets that are not valid
                self._detach()
                self._gone(f"it has sent a packet that is not valid: {error!r}")
                return
            if self._packets == before or not self._is_reading:
                break
        pending = getattr(self._client.socket(), "pending", None)  # of TLS: the loop does not see it
        if self._is_reading and pending is not None and pending():
            self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        if self._is_reading:
            self._readable()

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self._is_reading and self._descriptor >= 0:
            self._is_reading = True
            self._loop.add_reader(self._descriptor, self._readable)
            self._loop.call_soon(self._read_more)

    async def _answer(self, answer: "asyncio.Future[Any]") -> Any:
        await asyncio.wait((answer, self._closed), timeout=self._options.timeout, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if self._closed.done():
            raise Lost(f"{self.where} has closed the connection: {self._closed.result()}")
        raise Lost(f"{self.where} does not answer")

    # Receiving.

    async def subscribe(self, topics: Sequence[str]) -> None:
        self._client.subscribe([(topic, self._subscription()) for topic in topics])
        if refusals := await self._answer(self._subscribed):
            raise Lost(f"{self.where} refuses a subscription: {refusals[0]}")

    def _subscription(self) -> Any:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        if not self._is_v5:
            return self._options.qos
        # Retained messages only for a new subscription: they would come again with every connection.
        handling = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB if self._options.retained else _RETAIN_NEVER
        return SubscribeOptions(qos=self._options.qos, retainHandling=handling)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Nothing more is sent to the session, which then ends."""
        self._client.unsubscribe([*topics])

    def _message(self, message: "MQTTMessage") -> None:
        self._packets += 1
        self._on_message(message)

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        for packet_id in packet_ids:
            self._client.ack(packet_id, 1)

    async def gone(self) -> None:
        """Raises Lost when the connection is gone."""
        await asyncio.shield(self._closed)
        raise Lost(f"the connection to {self.where} is gone: {self._closed.result()}")

    # Publishing.

    async def publish(self, values: Sequence[Publication]) -> dict[int, str]:
        """Returns when the broker has acknowledged them, except for QoS 0, which it does not: those are written.
        Returns the places of values that it refuses for good, with the reasons.
        """
        self._open, self._refused, self._must_wait = {}, {}, False
        for place, (topic, value) in enumerate(values):
            while len(self._open) >= self._open_max:
                await self._some_progress()
            if reason := self._too_large(topic, value):
                self._refused[place] = reason
                continue
            try:
                info = self._client.publish(topic, value, qos=self._options.qos, retain=self._options.retain)
            except ValueError as error:
                self._refused[place] = str(error)
            else:
                self._open[info.mid] = place
        while self._open:
            await self._some_progress()
        if self._must_wait:
            raise Lost(f"{self.where} accepts nothing now: quota exceeded")
        return self._refused

    def _too_large(self, topic: str, value: bytes) -> str:
        """Why the broker would close the connection instead of an answer; "" if it would not."""
        if self._packet_bytes_max is None:
            return ""
        packet_id = 2 if self._options.qos else 0
        rest = 2 + len(topic.encode()) + packet_id + _NO_PROPERTIES + len(value)
        size = 1 + _length_bytes(rest) + rest
        if size <= self._packet_bytes_max:
            return ""
        return f"its packet has {size:,} bytes; the broker accepts {self._packet_bytes_max:,} (Maximum Packet Size)"

    async def _some_progress(self) -> None:
        self._progress.clear()
        progressing = asyncio.ensure_future(self._progress.wait())
        try:
            await self._answer(progressing)
        finally:
            progressing.cancel()

    # Callbacks of the library.

    def _has_connected(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if limit := getattr(properties, "ReceiveMaximum", None):
            self._open_max = min(OPEN_MAX, limit)
        self._packet_bytes_max = getattr(properties, "MaximumPacketSize", None)
        if not self._connected.done():
            self._connected.set_result((bool(flags.session_present), str(reason) if reason.is_failure else ""))

    def _has_subscribed(self, _client: Any, _data: Any, _packet_id: int, reasons: Any, _properties: Any) -> None:
        if not self._subscribed.done():
            self._subscribed.set_result([str(reason) for reason in reasons if reason.is_failure])

    def _has_published(self, _client: Any, _data: Any, packet_id: int, reason: Any, _properties: Any) -> None:
        place = self._open.pop(packet_id, None)
        if place is not None and reason.is_failure:
            if reason.value == _QUOTA_EXCEEDED:
                self._must_wait = True
            else:
                self._refused[place] = str(reason)
        self._progress.set()

    def _gone(self, reason: str) -> None:
        if not self._closed.done():
            self._closed.set_result(reason)

    async def close(self) -> None:
        """Properly, so that the broker has all acknowledgements; the session stays if it is persistent."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._gone("it was closed here")
        self._client.disconnect()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._client.want_write() and self._client.socket() is not None:
                    self._client.loop_write()
                    await asyncio.sleep(0)
        self._detach()
        sock = self._client.socket()
        if sock is not None:
            sock.close()


_NO_PROPERTIES = 1
"""The bytes of an empty list of properties."""


def _length_bytes(length: int) -> int:
    """How many bytes a packet's length takes: seven bits in each."""
    return max(1, -(-length.bit_length() // 7))


_RETAIN_NEVER = 2
"""A value of the protocol's option."""
