"""The port `out` of `kafka`: each partition is a stream.

thread of the consumer     poll ──records by partition──▶ event loop     put ──▶ store
                           pause, resume ◀── a stream that may not send    complete ──▶ commit

A partition whose stream may not send keeps what was read of it, and is paused; the others continue. If none may send,
nothing is asked of the consumer for a while, because pausing discards what librdkafka has read ahead.
"""

import asyncio
import json
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.kafka.consumer import (
    Known,
    OutOfRange,
    PartitionConsumer,
    PartitionName,
    Polled,
    Records,
)
from penstock.connectors.kafka.options import KafkaOptions
from penstock.connectors.streams import DRAINED, CompletedIds, first_of
from penstock.connectors.threaded import OneThread
from penstock.core.errors import NoRoom, PenstockError

T = TypeVar("T")

CALLBACK_SECONDS = 60.0
"""How long a rebalance may wait for the event loop. Kafka gives a member five minutes."""

BLOCKED_SECONDS = 1.0
"""How long all streams may be blocked before partitions are paused and the group is served again."""


class Partition:
    """One that is being read, and its stream."""

    def __init__(self, name: PartitionName, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.is_paused = False
        self.completed = CompletedIds(stream)
        self._waiting: deque[Records] = deque()
        self._storing: asyncio.Task[None] | None = None

    @property
    def is_blocked(self) -> bool:
        return self._storing is not None and not self._storing.done()

    @property
    def storing(self) -> "asyncio.Task[None] | None":
        return self._storing if self.is_blocked else None

    async def take(self, records: Records) -> None:
        """Store the records now, or when the stream may send. Returns at once unless it may. Raises what storing
        earlier ones has raised.
        """
        self.check()
        if not self.is_blocked and self.stream.may_send:
            await self._put(records)
            return
        self._waiting.append(records)
        if not self.is_blocked:
            self._storing = asyncio.create_task(self._put_waiting())

    def check(self) -> None:
        """Raises what storing has raised in the background."""
        if self._storing is not None and self._storing.done() and not self._storing.cancelled():
            self._storing.result()

    async def _put_waiting(self) -> None:
        while self._waiting:
            await self._put(self._waiting[0])
            self._waiting.popleft()

    async def _put(self, records: Records) -> None:
        await self.stream.put(
            records.values,
            ids=records.ids,
            event_times_us=records.times_us,
            keys=records.keys,
            metadata=records.metadata,
        )
        self.completed.stored()

    async def leave(self, reason: str, *, is_drained: bool = False) -> None:
        """Close the stream without ending it. What waits is stored first if it is drained, else it is read again."""
        if is_drained and self._storing is not None:
            await self._storing
        elif self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
        await self.stream.cut_off(reason)

    def stop(self) -> None:
        """Release everything at once."""
        self.completed.stop()
        if self._storing is not None:
            self._storing.cancel()


class KafkaSource:
    """For one `run` of the connector."""

    def __init__(self, options: KafkaOptions, host: Host) -> None:
        self._options = options
        self._host = host
        self._thread = OneThread(f"{host.name} (kafka)")
        self._partitions: dict[PartitionName, Partition] = {}
        self._is_closing = False
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        consumer = PartitionConsumer(self._options)
        try:
            await self._thread.call(consumer.check)
            await self._begin(consumer)
            await self._store(consumer, await self._thread.call(consumer.poll, [], []))
            self._host.connected()
            await self._read(consumer)
            for partition in self._partitions.values():
                await partition.leave(DRAINED, is_drained=True)
            await self._commit_until_cancelled(consumer)
        finally:
            self._is_closing = True
            for partition in self._partitions.values():
                partition.stop()
            self._thread.stop(lambda: self._close(consumer))

    def _close(self, consumer: PartitionConsumer) -> None:
        consumer.commit(self._to_commit(), is_last=True)
        consumer.close()

    async def _begin(self, consumer: PartitionConsumer) -> None:
        if self._options.assignment == "group":
            await self._thread.call(consumer.subscribe, self._assigned, self._revoked)
        else:
            await self._assign_new(consumer)

    async def _assign_new(self, consumer: PartitionConsumer) -> None:
        found = await self._thread.call(consumer.partitions)
        new = [name for name in found if name not in self._partitions]
        if new:
            await self._thread.call(consumer.assign, await self._open(new))

    # Rebalances: in the consumer's thread, which waits for the event loop.

    def _assigned(self, names: list[PartitionName]) -> list[Known]:
        return self._in_loop(self._open(names))

    def _revoked(self, names: list[PartitionName]) -> Mapping[PartitionName, int]:
        return {} if self._is_closing else self._in_loop(self._leave(names))

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALLBACK_SECONDS)

    async def _open(self, names: list[PartitionName]) -> list[Known]:
        known = []
        for name in names:
            metadata = {"topic": name.topic, "partition": name.number}
            try:
                stream = await self._host.open_stream(str(name), resume=True, metadata=metadata)
            except NoRoom as error:
                raise Lost(str(error), error.hint) from error
            self._partitions[name] = Partition(name, stream)
            known.append(Known(name, stream.last_id))
        return known

    async def _leave(self, names: list[PartitionName]) -> Mapping[PartitionName, int]:
        """Returns what is complete of them, to be committed before another member reads on."""
        completed = self._to_commit()
        for name in names:
            if (partition := self._partitions.pop(name, None)) is not None:
                await partition.leave("the partition was assigned to another member of the group")
                partition.stop()
        return completed

    # Reading.

    async def _read(self, consumer: PartitionConsumer) -> None:
        refreshed = committed = self._loop.time()
        while not self._host.is_draining:
            await self._wait_if_all_are_blocked()
            polled = await self._thread.call(consumer.poll, *self._pauses())
            await self._store(consumer, polled)
            now = self._loop.time()
            if now - committed >= self._options.commit_interval:
                committed = now
                await self._thread.call(consumer.commit, self._to_commit())
            if self._options.assignment == "all" and now - refreshed >= self._options.refresh_interval:
                refreshed = now
                await self._assign_new(consumer)

    async def _store(self, consumer: PartitionConsumer, polled: Polled) -> None:
        for name, records in polled.records.items():
            # One that was revoked by the same call is read by another member, or again.
            if (partition := self._partitions.get(name)) is not None:
                await partition.take(records)
        for missing in polled.out_of_range:
            await self._skip(consumer, missing)

    async def _wait_if_all_are_blocked(self) -> None:
        storing = [partition.storing for partition in self._partitions.values()]
        tasks = [task for task in storing if task is not None]
        if tasks and len(tasks) == len(storing):
            with suppress(TimeoutError):
                async with asyncio.timeout(BLOCKED_SECONDS):
                    await first_of(*map(_ended, tasks), self._host.draining())

    def _pauses(self) -> tuple[list[PartitionName], list[PartitionName]]:
        """What to pause, and what to resume."""
        paused: list[PartitionName] = []
        resumed: list[PartitionName] = []
        for partition in self._partitions.values():
            partition.check()
            if partition.is_blocked is not partition.is_paused:
                partition.is_paused = partition.is_blocked
                (paused if partition.is_paused else resumed).append(partition.name)
        return paused, resumed

    def _to_commit(self) -> Mapping[PartitionName, int]:
        """An event's id is the offset after its record."""
        found = {name: partition.completed.take() for name, partition in self._partitions.items()}
        return {name: offset for name, offset in found.items() if offset is not None}

    async def _commit_until_cancelled(self, consumer: PartitionConsumer) -> None:
        """After a drain: pipelines still complete what was read."""
        while True:
            await asyncio.sleep(self._options.commit_interval)
            await self._thread.call(consumer.commit, self._to_commit())

    # What Kafka has deleted before it was read.

    async def _skip(self, consumer: PartitionConsumer, missing: OutOfRange) -> None:
        partition = self._partitions.get(missing.partition)
        if partition is None or (missing.is_deleted and partition.stream.last_id >= missing.first):
            return  # revoked, or reported twice
        reason = _reason(missing)
        if not missing.is_deleted or self._options.out_of_range == "fail":
            raise PenstockError(reason, _HINT if missing.is_deleted else _RECREATED_HINT)
        self._host.count("deleted_before_read", missing.first - missing.offset)
        gap = {"topic": missing.partition.topic, "partition": missing.partition.number}
        gap |= {"first_offset": missing.offset, "last_offset": missing.first - 1}
        await partition.stream.dead_letter(json.dumps(gap).encode(), reason, event_id=missing.first)
        await self._thread.call(consumer.move, missing.partition, missing.first)


async def _ended(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])


def _reason(missing: OutOfRange) -> str:
    if missing.is_deleted:
        return (
            f"{missing.partition}: Kafka has deleted the offsets {missing.offset} to {missing.first - 1} before they "
            "were read"
        )
    return f"{missing.partition} ends at offset {missing.end}, before offset {missing.offset}, up to which it was read"


_HINT = "Set `out_of_range: skip` to continue with the oldest record, and a longer retention for the topic."
_RECREATED_HINT = "If the topic was deleted and created again, give the connector another id: its streams start again."
