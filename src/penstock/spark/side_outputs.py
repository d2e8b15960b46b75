"""Side outputs of a task: what it cannot hand on, it stages beside the query and registers at its end.

A registered event leaves through `err` or `late` in the commit of its epoch, once, however many rows were made of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.core.errors import PenstockError
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.api.side_outputs import REGISTRATION_FORMAT, Registration, SideKey
from penstock.protocol.stored.names import Source, epoch_prefix
from penstock.protocol.stored.side_outputs import REMEMBERED_MAX, data_prefix
from penstock.spark.carried import Carried
from penstock.spark.python_worker import Task, coordinator, hinted, link
from penstock.spark.sink.staging import Staging
from penstock.spark.source.options import Trial

if TYPE_CHECKING:
    import pyarrow as pa

_DIGEST_END = 2**63
"""Digests are summed below this number, so that they do not depend on the order of rows."""


class NotRepeatable(PenstockError):
    """Two attempts at the same rows have decided differently which of them to hand on."""

    hint = (
        "The function must treat the same row in the same way each time it is called: look for times, random "
        "numbers and services in it. The epoch is run again."
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The pipeline that an operator belongs to, for its tasks."""

    worker: str
    """Host and port of its HTTP side, where the tasks run."""
    pipeline: str
    generation: int | None
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    trial: Trial | None = None
    """The pipeline's function is only tried: nothing leaves it."""
    carried: Carried | None = field(default=None, compare=False)
    """Set on a cluster."""

    def is_input(self) -> Callable[[str], bool]:
        """Tells whether the pipeline reads a segment."""
        sources = [*map(Source.parse, coordinator(self.worker).running(self.pipeline, self.generation).sources)]
        return cache(lambda segment: any(source.owns(segment) for source in sources))

    def watermark_before(self) -> int | None:
        """That at which the running batch starts, and which decides what is late: the same for all of its tasks."""
        if self.trial is not None:
            return self.trial.watermark
        return coordinator(self.worker).running(self.pipeline, self.generation).before


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why rows leave through a port; `watermark` and `behind_us` of late events, in microseconds."""

    port: str
    reasons: Sequence[str]
    watermark: Sequence[int | None] | None = None
    behind_us: Sequence[int | None] | None = None

    def take(self, rows: Sequence[int]) -> Rejected:
        def chosen(column: Sequence[Any] | None) -> list[Any] | None:
            return None if column is None else [column[row] for row in rows]

        return Rejected(self.port, chosen(self.reasons) or [], chosen(self.watermark), chosen(self.behind_us))

    def metadata(self, row: int) -> dict[str, Any]:
        numbers = {"watermark": self.watermark, "behind_us": self.behind_us}
        return {"reason": self.reasons[row]} | {
            name: column[row] for name, column in numbers.items() if column is not None and column[row] is not None
        }


class SideOutputs:
    """Of one task attempt. Nothing of it counts before `register`; without it, call `discard`."""

    def __init__(self, origin: Origin, epoch: int, key: SideKey, planned: str = "", attempt: str = "") -> None:
        """`planned`: for a missing part, the prefix under which it was planned. `attempt`: of a task that may register
        the key several times.
        """
        self._attempt = attempt
        self._planned = planned
        self._origin = origin
        self._epoch = epoch
        self._key = key
        prefix = epoch_prefix(origin.pipeline, origin.generation, epoch)
        connected = link(origin.worker, *origin.tls, f"side outputs of {origin.pipeline}")
        self._staging = Staging(connected, data_prefix(prefix))
        self._digest = 0
        self._reads: Callable[[str], bool] | None = None
        self._seen: Mapping[str, set[tuple[object, ...]]] = defaultdict(set)
        """Port → the identities of events that it has staged: the last ones."""

    @staticmethod
    def of(origin: Origin, epoch: int, key: SideKey, attempt: str = "") -> SideOutputs:
        kind = SideOutputs if origin.trial is None else NoSideOutputs
        return kind(origin, epoch, key, attempt=attempt)

    @classmethod
    def of_task(cls, origin: Origin, operator: str) -> SideOutputs:
        """Of the running task. Raises RequestError if it does not know its batch.

        Some tasks run an operator several times, in any of Python's processes: `coalesce` computes several partitions
        in one, and a join of all rows with all rows those of both sides.
        """
        task = Task.running()
        key = SideKey(True, operator, task.partition, task.stage)
        return cls.of(origin, task.batch, key, str(task.attempt))

    @property
    def partition(self) -> int:
        """Of the task."""
        return self._key.partition

    def stage(self, rows: pa.Table, rejected: Rejected) -> None:
        """Rows of an operator. Where they have kept the position of their event, `segment` and `offset`, the stored
        event leaves, once; any other row, and one whose event retention has removed, leaves as `value` or as JSON, and
        is marked as derived.
        """
        from penstock.spark.dead_letters.events import derived, identities, without_lost

        stored: list[int] = []
        others: list[int] = []
        found = identities(rows, self._is_input) if self._key.is_operator else identities(rows)
        for row, (identity, is_position) in enumerate(found):
            self._count(rejected.port, identity, rejected.reasons[row])
            if self._is_first(rejected.port, identity):
                (stored if is_position else others).append(row)
        if stored:
            stored, originals, lost = without_lost(self._origin.worker, self._origin.tls, rows, stored)
            others += lost
            self._append(originals, rejected.take(stored))
        if others:
            events = derived(rows.take(others))
            for row, value in zip(others, events.column("value").to_pylist(), strict=True):
                if found[row][0] is None:
                    self._count(rejected.port, value, rejected.reasons[row])
            self._append(events, rejected.take(others))

    def _is_input(self, segment: str) -> bool:
        if self._reads is None:
            self._reads = self._origin.is_input()
        return self._reads(segment)

    def _is_first(self, port: str, identity: tuple[object, ...] | None) -> bool:
        """False if the event is known to be staged. A reader has one row of each event."""
        if identity is None or not self._key.is_operator:
            return True
        seen = self._seen[port]
        if len(seen) >= REMEMBERED_MAX:
            seen.clear()
        before = len(seen)
        seen.add(identity)
        return len(seen) > before

    def _count(self, port: str, identity: object, reason: str) -> None:
        """Every row counts, also of an event that is staged already: which of its rows comes first may differ."""
        self._digest = (self._digest + _hash(port, repr(identity), reason.partition(":")[0])) % _DIGEST_END

    def _append(self, events: pa.RecordBatch, rejected: Rejected) -> None:
        from penstock.spark.dead_letters.events import with_reasons
        from penstock.spark.sink.rows import blocks

        reasons = [rejected.metadata(row) for row in range(events.num_rows)]
        for block in blocks(with_reasons(events, reasons), rejected.port):
            self._staging.append(block.port, block.data, block.rows)

    def finish(self) -> Registration:
        """When it returns, everything that was staged is durable."""
        staged = tuple(Staged(one.port, one.segment, one.length, one.rows) for one in self._staging.finish())
        token = uuid4().hex if self._attempt else ""
        return Registration(self._key, staged, self._digest, REGISTRATION_FORMAT, self._attempt, token)

    def register(self, given: Registration) -> None:
        """Call it when the task has handed on its last row. Raises NotRepeatable if an earlier attempt has staged other
        events: the task must fail then, because either may be the one whose rows Spark uses.

        What was staged is deleted only if the worker has certainly not registered it: it may have, although no reply
        came. What is no longer needed is swept.
        """
        origin = self._origin
        first = coordinator(origin.worker).register(
            origin.pipeline, self._epoch, given, generation=origin.generation, prefix=self._planned
        )
        if first != given:
            self.discard()
        if first.digest != given.digest:
            name = self._key.operator.partition(" ")[2] or self._key.operator
            raise NotRepeatable(f"{name} made different decisions for the same rows in epoch {self._epoch}")

    def discard(self) -> None:
        """Delete what was staged, best effort: what remains is swept."""
        self._staging.discard()


class NoSideOutputs(SideOutputs):
    """Of a task of a trial: nothing is staged or registered."""

    def stage(self, rows: pa.Table, rejected: Rejected) -> None:
        pass

    def register(self, given: Registration) -> None:
        pass


def _hash(*texts: str) -> int:
    return int.from_bytes(blake2b("\0".join(texts).encode(), digest_size=8).digest())


@contextmanager
def side_outputs(origin: Origin, operator: str) -> Iterator[SideOutputs]:
    """Those of the running task."""
    with registered(SideOutputs.of_task(origin, operator)) as sides:
        yield sides


@contextmanager
def registered(sides: SideOutputs, *, even_empty: bool = True) -> Iterator[SideOutputs]:
    """Registered at the end, discarded if the task fails or is stopped before. Without `even_empty`, nothing is
    registered if nothing was staged: for a task that nothing waits for, and that cannot decide differently next time.
    """
    with hinted():
        try:
            yield sides
            given = sides.finish()
        except BaseException:
            sides.discard()
            raise
        if given.staged or even_empty:
            sides.register(given)
