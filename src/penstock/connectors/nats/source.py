"""Reads a JetStream stream from the position that is stored here: the sequence of a message is the id of its event.

The consumer on the server is only a cursor: it is created for each connection, at the position after the last stored
message, and acknowledges nothing. So nothing on the server decides what was read.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.nats.connection import Connection, server_errors
from penstock.connectors.nats.options import NatsOptions, has_wildcards
from penstock.connectors.streams import DRAINED, first_of, ready_or_draining

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamInfo

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""How long the server waits for messages before it answers that there are none."""

ANSWER_SECONDS = 10.0
"""How much later that answer may come: after this, the request was lost, for example with the consumer's leader."""

INACTIVE_SECONDS = 300.0
"""The server removes a consumer that has requested nothing for so long; a paused source creates another one."""

HEADERS_BYTES_MAX = 16 << 10
"""Longer headers of a message are left out, and counted: each event carries its own."""

_LIMITS = "limits"
_EXPIRED, _CONFLICT, _HEARTBEAT = "408", "409", "100"
_TOO_LARGE = "exceeds maxbytes"

# What the sequences of messages show. Pure.


class Delivery(NamedTuple):
    """The fields of a message's reply subject."""

    stream_sequence: int
    consumer_sequence: int
    time_us: int


def delivery_of(reply: str) -> Delivery:
    """`$JS.ACK.STREAM.CONSUMER.…`, or `$JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.…`."""
    fields = reply.split(".")
    at = 5 if len(fields) == 9 else 7
    return Delivery(int(fields[at]), int(fields[at + 1]), int(fields[at + 2]) // 1000)


def removed_between(seen: int, first_kept: int, next_read: int) -> int:
    """How many sequences after `seen` and before `next_read` are before the first one that the stream still has."""
    return max(0, min(first_kept, next_read) - seen - 1)


def check_position(last_id: int, last_sequence: int, where: str) -> None:
    """Raises Lost if the server's stream ends before what is stored here: it would reuse sequences."""
    if last_id > last_sequence:
        raise Lost(
            f"{where} ends at sequence {last_sequence}, but {last_id} was read from it before: the server has lost "
            "messages, or was restored from an older backup",
            "The connector would skip its next messages as already read. Create the stream again, or rename the "
            "connector.",
        )


# Requests for messages.


class Puller:
    """One request for messages at a time. What has arrived is bounded by the size of a request."""

    def __init__(self, connection: Connection, options: NatsOptions, consumer: str) -> None:
        self._connection = connection
        self._options = options
        self.consumer = consumer
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{options.stream}.{consumer}"
        self._inbox = connection.client.new_inbox()
        self._arrived: list[Msg] = []
        self._changed = asyncio.Event()
        self._open = self._got = 0
        """Messages that are still to come for the request, and those that have."""
        self._failure = ""

    async def start(self) -> None:
        # Without limits: the library would drop what exceeds them, and requests are limited.
        await self._connection.client.subscribe(self._inbox, cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0)

    async def request(self) -> None:
        if self._open or self._arrived:
            return
        options = self._options
        self._open, self._got = options.fetch_messages, 0
        wanted = {
            "batch": options.fetch_messages,
            "max_bytes": options.fetch_bytes,
            "expires": int(REQUEST_SECONDS * 1e9),
        }
        with server_errors(self._connection.where):
            await self._connection.client.publish(self._subject, json.dumps(wanted).encode(), reply=self._inbox)

    async def wait(self) -> None:
        """Returns when messages have arrived, or the request has ended without one. Raises Lost."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS + ANSWER_SECONDS):
                while self._open and not self._arrived and not self._failure:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Lost(f"{self._connection.where} does not answer a request for messages") from None
        if self._failure and not self._arrived:
            raise Lost(self._failure)

    def taken(self) -> "list[Msg]":
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _take(self, message: "Msg") -> None:
        if message.reply:
            self._arrived.append(message)
            self._got += 1
            self._open -= 1
        else:
            self._end(message.headers or {})
        self._changed.set()

    def _end(self, headers: Mapping[str, str]) -> None:
        """The server has sent a status: usually the end of the request."""
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == _HEARTBEAT:
            return
        if status == _CONFLICT and _TOO_LARGE in text.lower():
            if self._got == 0:
                self._failure = (
                    f"the next message of {self._options.stream} is larger than fetch_bytes "
                    f"({self._options.fetch_bytes:,} bytes); raise it"
                )
        elif status != _EXPIRED:
            self._failure = f"{self._connection.where} ended a request for messages: {text or status or 'no reason'}"
        self._open = 0


class Source:
    """One connection's reading. `run` raises Lost when the connection is gone, and returns when it is drained."""

    def __init__(self, connection: Connection, options: NatsOptions, host: Host) -> None:
        self._connection = connection
        self._options = options
        self._host = host
        self._where = f"stream {options.stream} at {connection.where}"
        self._jetstream: JetStreamContext = connection.jetstream
        self._seen = self._consumer_sequence = 0
        """The sequences up to which everything was read: of the stream, and of the consumer."""
        self._deletions_logged = False

    async def run(self) -> None:
        info = await self._info()
        _check_retention(info, self._where)
        subject = self._fixed_subject(info)
        stream = await self._host.open_stream(
            self._name(info), resume=True, metadata={"subject": subject} if subject else {}
        )
        try:
            await self._read(stream, info, has_subjects=not subject)
        finally:
            await stream.close()

    def _name(self, info: "StreamInfo") -> str:
        """A stream that was created again has other messages under the same sequences."""
        created = f"{info.created:%Y-%m-%dT%H:%M:%S.%fZ}" if info.created is not None else ""
        return f"{self._options.stream} {self._options.filter or '>'} {created}".rstrip()

    def _fixed_subject(self, info: "StreamInfo") -> str:
        """The subject of all messages; "" if they can have different ones."""
        subjects = [self._options.filter] if self._options.filter else [*(info.config.subjects or ())]
        return subjects[0] if len(subjects) == 1 and not has_wildcards(subjects[0]) else ""

    async def _info(self) -> "StreamInfo":
        from nats.js.errors import NotFoundError

        try:
            with server_errors(self._where):
                return await self._jetstream.stream_info(self._options.stream)
        except Lost as lost:
            if isinstance(lost.__cause__, NotFoundError):
                raise Lost(f"{self._where} does not exist", "Create it, for example with `nats stream add`.") from lost
            raise

    async def _read(self, stream: Stream, info: "StreamInfo", *, has_subjects: bool) -> None:
        check_position(stream.last_id, info.state.last_seq, self._where)
        self._seen = stream.last_id or (
            info.state.last_seq if self._options.start == "new" else max(0, info.state.first_seq - 1)
        )
        self._report_removed(removed_between(self._seen, info.state.first_seq, info.state.first_seq))
        consumer = await self._create_consumer(self._seen + 1)
        puller = Puller(self._connection, self._options, consumer)
        with server_errors(self._where):
            await puller.start()
        self._host.connected()
        try:
            await self._pump(stream, puller, has_subjects)
            await stream.cut_off(DRAINED)
        finally:
            await self._remove_consumer(consumer)

    async def _create_consumer(self, sequence: int) -> str:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            description="Penstock: a cursor, created for each connection",
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
            ack_policy=AckPolicy.NONE,
            filter_subject=self._options.filter or None,
            inactive_threshold=INACTIVE_SECONDS,
            num_replicas=1,
            mem_storage=True,
        )
        with server_errors(self._where):
            return (await self._jetstream.add_consumer(self._options.stream, config)).name

    async def _remove_consumer(self, consumer: str) -> None:
        """The server does it otherwise, but later."""
        if not self._connection.closed.is_set():
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._jetstream.delete_consumer(self._options.stream, consumer)

    async def _pump(self, stream: Stream, puller: Puller, has_subjects: bool) -> None:
        while await self._may_read(stream):
            await puller.request()
            if await first_of(puller.wait(), self._host.draining(), self._connection.closed.wait()):
                self._connection.check()
                return
            messages = puller.taken()
            if messages:
                await self._store(stream, messages, has_subjects)
            elif self._options.filter:
                await self._catch_up(puller.consumer)

    async def _may_read(self, stream: Stream) -> bool:
        """Waits until the stream may send; a connection that is lost meanwhile is noticed."""
        if not stream.may_send:
            await first_of(ready_or_draining(stream, self._host), self._connection.closed.wait())
        self._connection.check()
        return not self._host.is_draining

    async def _store(self, stream: Stream, messages: "Sequence[Msg]", has_subjects: bool) -> None:
        deliveries = [delivery_of(message.reply) for message in messages]
        self._check_complete(deliveries)
        ids = [one.stream_sequence for one in deliveries]
        if ids[-1] - self._seen != len(ids):
            await self._check_gap(ids)
        self._seen = ids[-1]
        own_times = self._options.event_time == "server"
        await stream.put(
            [message.data for message in messages],
            ids=ids,
            event_times_us=[one.time_us for one in deliveries] if own_times else None,
            metadata=self._metadata(messages, has_subjects),
        )

    def _check_complete(self, deliveries: Sequence[Delivery]) -> None:
        """The consumer numbers what it sends: none of it may be missing."""
        first, last = deliveries[0].consumer_sequence, deliveries[-1].consumer_sequence
        if first != self._consumer_sequence + 1 or last - first + 1 != len(deliveries):
            raise Lost(f"messages of {self._where} were lost on their way; they are read again")
        self._consumer_sequence = last

    def _metadata(self, messages: "Sequence[Msg]", has_subjects: bool) -> list[dict[str, Any]] | None:
        if not has_subjects and not any(message.headers for message in messages):
            return None
        return [self._metadata_of(message, has_subjects) for message in messages]

    def _metadata_of(self, message: "Msg", has_subjects: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"subject": message.subject} if has_subjects else {}
        if message.headers:
            if sum(len(name) + len(value) for name, value in message.headers.items()) <= HEADERS_BYTES_MAX:
                found["headers"] = dict(message.headers)
            else:
                self._host.count("headers_left_out")
        return found

    # What the server has removed before it was read.

    async def _check_gap(self, ids: Sequence[int]) -> None:
        """Some sequences are missing: they do not match the filter, were deleted one by one, or were removed from the
        stream's beginning.
        """
        info = await self._info()
        removed = removed_between(self._seen, info.state.first_seq, ids[0])
        self._report_removed(removed)
        deleted = ids[-1] - self._seen - len(ids)
        if deleted > 0 and not self._options.filter:
            self._host.count("deleted_messages", deleted)
            if not self._deletions_logged:
                log.warning(
                    "%s: individual messages of %s were deleted before they were read", self._host.name, self._where
                )
            self._deletions_logged = True

    def _report_removed(self, removed: int) -> None:
        if not removed:
            return
        text = f"{self._where} has removed {removed} messages after sequence {self._seen} before they were read"
        if self._options.filter:
            self._host.count("perhaps_removed", removed)
            log.warning("%s: %s, perhaps some of %s", self._host.name, text, self._options.filter)
        elif self._options.on_removed == "fail":
            raise Lost(
                text, "They are lost. To read the rest, set on_removed: continue. Give the stream higher limits."
            )
        else:
            self._host.count("removed_messages", removed)
            log.warning("%s: %s", self._host.name, text)
        self._seen += removed

    async def _catch_up(self, consumer: str) -> None:
        """With a filter, sequences that do not match pass unseen. If nothing is pending, everything up to the stream's
        end was considered, and its removal is not a loss.
        """
        last = (await self._info()).state.last_seq
        with server_errors(self._where):
            found = await self._jetstream.consumer_info(self._options.stream, consumer)
        delivered = found.delivered.consumer_seq if found.delivered is not None else 0
        if not found.num_pending and delivered == self._consumer_sequence:
            self._seen = max(self._seen, last)


def _check_retention(info: "StreamInfo", where: str) -> None:
    retention = info.config.retention or _LIMITS
    if retention != _LIMITS:
        raise Lost(
            f"{where} has the retention {retention}: its messages are removed when consumers acknowledge them, "
            "and a source acknowledges nothing",
            "Read a mirror of it with the retention `limits`.",
        )
