"""Publishes whole epochs to JetStream, each row under an id that is the same when it is published again.

    Nats-Msg-Id      SINK:PIPELINE:INCARNATION:EPOCH/ROW     the server drops a second one within its duplicate window
    Penstock-After   SEQUENCE                                of the subject's last message before the row's part

An epoch is published in parts. With `exclusive`, the first message of a part is accepted only if the subject's last
message is the one that was found or published before, and it is acknowledged before the others are sent. So all rows
before a part are stored, and after a failure the messages since the part began show which of its rows are.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.connectors.api import Lost
from penstock.connectors.nats.connection import Connection, server_errors
from penstock.connectors.nats.options import KEY, NatsOptions, is_subject
from penstock.connectors.sink_api import Epoch, Row, SinkLost, rows_of

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import RawStreamMsg

PART_ROWS_MAX = 1000
PART_BYTES_MAX = 4 << 20
"""What is published before the acknowledgements are awaited: bounds memory, and what is looked at after a failure."""

MESSAGE_ID, EXPECTED_STREAM = "Nats-Msg-Id", "Nats-Expected-Stream"
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
AFTER = "Penstock-After"

_LOOK_SECONDS = 30.0
"""When the server forgets the cursor of a look at what is there."""

_WRONG_LAST_SEQUENCE = 10071
"""The server's error code: the subject's last message is another one than expected."""

# Which rows of an epoch a subject has. Pure.


class RowId(NamedTuple):
    """What identifies a row for a subject."""

    sink: str
    epoch: str
    """`pipeline:incarnation:epoch`"""
    row: int

    def __str__(self) -> str:
        return f"{self.sink}:{self.epoch}/{self.row}"


def parse_id(text: str | None, sink: str) -> RowId | None:
    """None if it is not an id of this sink."""
    epoch, _, row = (text or "").removeprefix(f"{sink}:").rpartition("/")
    if not (text or "").startswith(f"{sink}:") or not row.isdigit() or epoch.count(":") < 2:
        return None
    return RowId(sink, epoch, int(row))


def order_of(epoch: str) -> tuple[str, int]:
    """The pipeline with its incarnation, and the number of the epoch."""
    of, _, number = epoch.rpartition(":")
    return of, int(number)


@dataclass(frozen=True, slots=True)
class Stored:
    """The rows of one epoch that the subject has: all before `first`, and `rows`, of the last part."""

    first: int = 0
    rows: frozenset[int] = frozenset()
    is_whole: bool = False
    """A later epoch is there: then so is all of this one."""

    @classmethod
    def of(cls, epoch: str, last: RowId, part: Iterable[RowId]) -> "Stored":
        """`part`: the ids of the messages of the part that the subject's last message belongs to."""
        if last.epoch != epoch:
            (of, number), (last_of, last_number) = order_of(epoch), order_of(last.epoch)
            return cls(is_whole=of == last_of and last_number > number)
        rows = frozenset(one.row for one in part if one.epoch == epoch)
        return cls(min(rows), rows)

    @property
    def end(self) -> int:
        """Rows from here on are new."""
        return max(self.rows, default=-1) + 1

    def has(self, row: int) -> bool:
        return self.is_whole or row < self.first or row in self.rows


def parts_of(rows: Iterable[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    """Not empty, and within the limits, except for a single large row."""
    part: list[tuple[int, Row]] = []
    size = 0
    for one in rows:
        if part and (len(part) >= PART_ROWS_MAX or size + len(one[1].value) > PART_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[1].value)
    if part:
        yield part


# Publishing.


class Message(NamedTuple):
    subject: str
    data: bytes
    headers: dict[str, str]


class Publisher:
    """Publishes many messages at once, and waits for the acknowledgement of each."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._inbox = connection.client.new_inbox()
        self._round = 0
        self._open: set[str] = set()
        self._last = 0
        self._refusal: tuple[int, str] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        await self._connection.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    async def publish(self, messages: Sequence[Message]) -> int:
        """Returns the highest sequence. Raises Refused and Lost; then it is not known which were stored."""
        self._round += 1
        self._last, self._refusal = 0, None
        self._open = {f"{self._inbox}.{self._round}-{place}" for place in range(len(messages))}
        publish, prefix = self._connection.client.publish, f"{self._inbox}.{self._round}-"
        for place, message in enumerate(messages):
            await publish(message.subject, message.data, reply=f"{prefix}{place}", headers=message.headers)
        await self._all_acknowledged()
        return self._last

    async def _all_acknowledged(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                while self._open and self._refusal is None:
                    self._connection.check()
                    self._changed.clear()
                    closing = asyncio.ensure_future(self._connection.closed.wait())
                    changing = asyncio.ensure_future(self._changed.wait())
                    try:
                        await asyncio.wait((closing, changing), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        closing.cancel()
                        changing.cancel()
        except TimeoutError:
            raise Lost(f"{self._connection.where} has not acknowledged {len(self._open)} messages in time") from None
        if self._refusal is not None:
            raise Refused(*self._refusal)

    async def _acknowledged(self, message: "Msg") -> None:
        if message.subject not in self._open:
            return
        self._open.discard(message.subject)
        answer: dict[str, Any] = json.loads(message.data) if message.data else {"error": _NO_STREAM}
        if "error" in answer:
            error = answer["error"]
            self._refusal = self._refusal or (error.get("err_code", 0), error.get("description", "no reason"))
        else:
            self._last = max(self._last, answer.get("seq", 0))
        if not self._open or self._refusal is not None:
            self._changed.set()


_NO_STREAM = {"err_code": 0, "description": "no stream stores this subject"}


class Refused(Lost):
    """The server did not store a message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NatsSink:
    """A NonVotingSink. Exactly once if it is the subject's only writer, as `exclusive` declares; otherwise at least
    once, without repetitions within the duplicate window of the stream.
    """

    def __init__(self, options: NatsOptions, name: str) -> None:
        self._options = options
        self._name = name.replace(" ", "_")
        self._where = f"subject {options.subject} of stream {options.stream}"
        self._connection: Connection | None = None
        self._publisher: Publisher | None = None
        self._last: int | None = None
        """The sequence of the subject's last message; None: not known since the last failure."""

    async def deliver(self, epoch: Epoch) -> None:
        try:
            with server_errors(", ".join(self._options.servers)):
                await self._deliver(epoch)
        except Lost as lost:
            await self.close()
            raise SinkLost(f"{self._where}: {lost}", lost.hint or None) from lost
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._last = None
        connection, self._connection, self._publisher = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _deliver(self, epoch: Epoch) -> None:
        await self._connect()
        stored, after = await self._look(epoch.name) if self._options.exclusive else (Stored(), 0)
        headers = self._headers_bytes(epoch.name)
        number = 0
        async for block in epoch.blocks():
            rows = [*enumerate(rows_of(block), number)]
            number += len(rows)
            # Of rows before the last part it is known only that they were stored or refused: they are refused again.
            unknown = [one for one in rows if one[0] not in stored.rows]
            accepted = [one for one in unknown if not self._is_refused(epoch, *one, headers)]
            missing = [one for one in accepted if not stored.has(one[0])]
            # Rows that are missing in the last part belong to it, also after another failure.
            await self._publish(epoch.name, [one for one in missing if one[0] < stored.end], after)
            for part in parts_of(one for one in missing if one[0] >= stored.end):
                await self._publish(epoch.name, part, self._last or 0)

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.closed.is_set():
            return
        await self.close()
        self._connection = Connection(self._options)
        await self._connection.open()
        self._publisher = Publisher(self._connection, self._options.timeout)
        await self._publisher.start()

    # What the subject has.

    async def _look(self, epoch: str) -> tuple[Stored, int]:
        """The rows that are there, and the sequence before the part that the last of them belongs to. Nothing has to be
        looked for if this connection has published everything before.
        """
        if self._last is not None:
            return Stored(), 0
        last = await self._message()
        if last is None:
            self._last = 0
            return Stored(), 0
        sequence = last.seq or 0
        found, after = self._id_of(sequence, last.headers)
        stored = Stored.of(epoch, found, await self._part(after, sequence) if found.epoch == epoch else ())
        self._last = sequence
        return stored, after

    async def _part(self, after: int, last: int) -> list[RowId]:
        """The ids of the subject's messages after this sequence, up to the last one."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        assert self._connection is not None
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.NONE,
            headers_only=True,
            inactive_threshold=_LOOK_SECONDS,
        )
        options, jetstream = self._options, self._connection.jetstream
        reading = await jetstream.pull_subscribe(options.subject, stream=options.stream, config=config)
        found: list[RowId] = []
        sequence = after
        while sequence < last:
            for message in await reading.fetch(PART_ROWS_MAX, options.timeout):
                sequence = message.metadata.sequence.stream
                found.append(self._id_of(sequence, message.headers)[0])
        await reading.unsubscribe()
        return found

    async def _message(self) -> "RawStreamMsg | None":
        """The subject's last message."""
        from nats.js.errors import NotFoundError

        assert self._connection is not None
        try:
            return await self._connection.jetstream.get_last_msg(self._options.stream, self._options.subject)
        except NotFoundError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                raise
            return None

    def _id_of(self, sequence: int, given: Mapping[str, str] | None) -> tuple[RowId, int]:
        headers = given or {}
        found, after = parse_id(headers.get(MESSAGE_ID), self._name), headers.get(AFTER, "")
        if found is None or not after.isdigit():
            raise Lost(
                f"its message {sequence} comes from another writer, but the sink is exclusive",
                "Give the sink a subject of its own, or set exclusive: false.",
            )
        return found, int(after)

    # Publishing.

    async def _publish(self, epoch: str, part: Sequence[tuple[int, Row]], after: int) -> None:
        if not part:
            return
        assert self._publisher is not None
        messages = [self._message_of(epoch, row, number, after) for number, row in part]
        if not self._options.exclusive:
            await self._publisher.publish(messages)
            return
        messages[0].headers[EXPECTED_LAST] = str(self._last or 0)
        try:
            self._last = await self._publisher.publish(messages[:1])
        except Refused as refused:
            if refused.code == _WRONG_LAST_SEQUENCE:
                raise Lost("it has received a message since, from this sink or from another writer") from refused
            raise
        if len(messages) > 1:
            self._last = max(self._last, await self._publisher.publish(messages[1:]))

    def _message_of(self, epoch: str, row: Row, number: int, after: int) -> Message:
        return Message(self._subject_of(row), row.value, self._headers(epoch, str(number), after))

    def _headers(self, epoch: str, number: str, after: int) -> dict[str, str]:
        headers = {MESSAGE_ID: f"{self._name}:{epoch}/{number}", EXPECTED_STREAM: self._options.stream}
        if self._options.exclusive:
            headers[AFTER] = str(after)
        return headers

    def _headers_bytes(self, epoch: str) -> int:
        """The size of a row's headers, without the row's number. With `exclusive`, it is that of the longest headers: a
        row that is delivered again, in another part, must again be refused or not.
        """
        headers = self._headers(epoch, "", _SEQUENCE_MAX)
        if self._options.exclusive:
            headers[EXPECTED_LAST] = str(_SEQUENCE_MAX)
        lines = ["NATS/1.0", *(f"{name}: {value}" for name, value in headers.items()), ""]
        return sum(len(f"{line}\r\n".encode()) for line in lines)

    def _subject_of(self, row: Row) -> str:
        return self._options.subject.replace(KEY, row.key.decode(errors="replace"))

    def _is_refused(self, epoch: Epoch, number: int, row: Row, headers: int) -> bool:
        """Whether the server would never accept the row. `headers`: their size, without the row's number."""
        assert self._connection is not None
        accepted, headers = self._connection.client.max_payload, headers + len(str(number))
        if headers + len(row.value) > accepted:
            sizes = f"{len(row.value):,} bytes and up to {headers:,} of headers"
            epoch.refuse(number, f"it has {sizes}, and the server accepts {accepted:,} (max_payload)")
            return True
        if KEY in self._options.subject and not is_subject(subject := self._subject_of(row)):
            epoch.refuse(number, f"with its key, {subject!r} is not a valid subject")
            return True
        return False


_STREAM_NOT_FOUND = 10059
"""The server's error code; another one is for a message."""

_SEQUENCE_MAX = 2**64 - 1
"""Of a message in a stream."""
