"""The log of a shard in a bucket: numbered objects, written create-only, each the fence of its writer
(docs/internals/bucket.md).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, NoReturn, TypeVar

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.core.errors import (
    BucketFailed,
    BucketForbidden,
    BucketFull,
    BucketUnavailable,
    Damaged,
    StoreFailed,
    TakenOver,
)
from penstock.core.retry import RetryPolicy
from penstock.core.types import Buffer
from penstock.store.bucket_directory import Place
from penstock.store.log_object import (
    FORMAT,
    NO_HEAD,
    Checkpoint,
    Head,
    Kind,
    LogObject,
    Prefix,
    damaged,
    decode,
    decode_head,
    encode,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

OPENING_SECONDS_MAX = 30.0
"""How long a start repeats one request to a store that cannot be reached. A start that makes progress may take longer:
200 MB on a line of 10 Mbit/s take 160 s.
"""

_REQUESTS = RetryPolicy(0.05, 5.0)
_FAILURES_LOGGED = 3
"""One failure or two are nothing unusual."""
_READ_AHEAD = 16
"""Objects that a take-over requests at a time. A request takes some 10 ms, most of it waiting."""


@dataclass(slots=True)
class Failures:
    """Of one request, in a row."""

    count: int = 0
    since: float = 0.0
    """When the first one was known."""


class Patience:
    """Repeats requests for as long as the bucket cannot be reached, throttles, refuses or is full.

    While the log is opened, what waiting does not mend is raised, and after a while everything; later, nothing is until
    `stop` is called.
    """

    def __init__(
        self, sleep: Callable[[float], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`sleep` replaces the waiting."""
        self.problem = ""
        """Why requests are repeated; "" if they are answered."""
        self.stopped = Event()
        self._sleep = sleep or self.stopped.wait
        self._clock = clock
        self._is_opening = True

    def opened(self) -> None:
        self._is_opening = False

    def stop(self) -> None:
        """A request that waits fails instead."""
        self.stopped.set()

    def pause(self, failures: int) -> None:
        """After this many failures in a row."""
        self._sleep(_REQUESTS.pause(failures))

    def wait(self, failures: Failures, error: BucketFailed) -> None:
        """Counts the failure, and returns when the request may be repeated; raises to give up."""
        now = self._clock()
        failures.count += 1
        if failures.count == 1:
            failures.since = now
        is_hopeless = not isinstance(error, BucketUnavailable) or now - failures.since > OPENING_SECONDS_MAX
        if self._is_opening and is_hopeless:
            raise error
        if failures.count == _FAILURES_LOGGED:
            log.warning("the object store has failed %d times in a row; retrying: %s", failures.count, error)
        self.problem = f"{error}. {error.hint}"
        self.pause(failures.count)
        if self.stopped.is_set():
            raise StoreFailed(f"the worker stops while the object store does not answer: {error}", error.hint)

    def answered(self, failures: Failures) -> None:
        """A request is answered, after these failures."""
        if failures.count:
            self.problem = ""


class _Superseded(Exception):
    """What was read has been replaced in the meantime: read again."""


class ShardLog:
    """The log, from `take_over` on. One thread at a time may append; others may move the head and delete.

    No request's failure is reported while its outcome is unknown: the log asks, and tries again, for as long as it has
    patience.
    """

    def __init__(
        self, bucket: Bucket, shard: str, writer: bytes, patience: Patience, executor: Executor | None = None
    ) -> None:
        """`executor`: for reading ahead; without it, objects are requested one by one."""
        self.bucket = bucket
        self.keys = Prefix(shard)
        self.term = 0
        self.next = 1
        """The number of the next object."""
        self.base = Checkpoint(0, 1, None, [])
        """The newest checkpoint when the log was read."""
        self.take_overs: list[int] = []
        """Numbers of take-over objects, which are never deleted."""
        self._deletable: list[int] = []
        """Numbers of the other objects."""
        self._writer = writer
        self._patience = patience
        self._executor = executor
        self._chain = 0
        self._head = NO_HEAD
        self._head_version = ""

    # Reading.

    def take_over(self, owner: str, begin: Callable[[Any], None], apply: Callable[[LogObject], None]) -> None:
        """Read the log to its end and become its owner. `begin` is called with the directory of the newest checkpoint
        (None: from scratch), then `apply` with each group after it; both again if the log has changed meanwhile.
        """
        while True:
            try:
                self._read(begin, apply)
                self._claim(owner)
            except _Superseded:
                continue
            return

    def read(self, begin: Callable[[Any], None], apply: Callable[[LogObject], None]) -> None:
        """Like `take_over`, without becoming the owner: nothing may be appended afterwards."""
        while True:
            with suppress(_Superseded):
                return self._read(begin, apply)

    def _read(self, begin: Callable[[Any], None], apply: Callable[[LogObject], None]) -> None:
        """From the newest checkpoint on. That may be one that the head does not name yet: what it has released may be
        deleted at any time, so that a reader must not continue without it.
        """
        self._read_head()
        newest: Checkpoint | None = self._read_head_checkpoint()
        while newest is not None:
            newest = self._read_from(newest, begin, apply)

    def _read_head_checkpoint(self) -> Checkpoint:
        if not self._head.checkpoint:
            return Checkpoint(0, 1, None, [])
        try:
            return self._checkpoint(self.get(self._head.checkpoint))
        except NoSuchObject:
            self._superseded_or_damaged(self._head.checkpoint, "it is missing, though the head names it")

    def _checkpoint(self, found: LogObject) -> Checkpoint:
        if found.kind is not Kind.CHECKPOINT:
            raise damaged(self.keys.log(found.number), "it is not a checkpoint, though the head names it as one")
        return Checkpoint(found.number, *found.body)

    def _read_from(
        self, start: Checkpoint, begin: Callable[[Any], None], apply: Callable[[LogObject], None]
    ) -> Checkpoint | None:
        """Returns a newer checkpoint, to read again from there; None at the end of the log."""
        begin(start.directory)
        self.base, self.take_overs, self.next = start, [*start.take_overs], start.first
        self._deletable = [start.number] if 0 < start.number < start.first else []
        chain = None if start.number else 0
        for found in self._objects():
            if chain is not None and found.chain != chain:
                self._superseded_or_damaged(found.number, "it does not continue the object before it")
            chain = self._chain = found.checksum
            self.term = max(self.term, found.term)
            self.next = found.number + 1
            if found.kind is Kind.CHECKPOINT and found.number > start.number:
                return self._checkpoint(found)
            self._note(found.kind, found.number)
            if found.kind is Kind.GROUP:
                apply(found)
        if self.next <= start.number:
            self._superseded_or_damaged(self.next, "it is missing, and later ones are there")
        self._check_end()
        return None

    def _check_end(self) -> None:
        """Numbers are written in order: if one is absent and a later one is there, somebody has deleted it. Without a
        head, all of them must be there, so a listing is worth a request: if the head is what was deleted, a worker that
        continued would start from scratch, and delete everything else.
        """
        is_followed = self._exists(self.next + 1) or (self._head == NO_HEAD and self._last_listed() > self.next)
        if is_followed and not self._exists(self.next):
            self._superseded_or_damaged(self.next, "it is missing, and later ones are there")

    def _last_listed(self) -> int:
        return max((number for number, _ in self._asked(self._listed_numbers)), default=0)

    def _listed_numbers(self) -> list[tuple[int, str]]:
        """With their keys. File systems and tools leave files of other names."""
        listed = self.bucket.list(self.keys.logs)
        return [(number, each.key) for each in listed if (number := self.keys.number(each.key)) is not None]

    def _exists(self, number: int) -> bool:
        try:
            self._asked(lambda: self.bucket.get_range(self.keys.log(number), 0, 1))
        except NoSuchObject:
            return False
        return True

    def _note(self, kind: Kind, number: int) -> None:
        if kind is not Kind.TAKE_OVER:
            self._deletable.append(number)
        elif number not in self.take_overs[-1:]:
            self.take_overs.append(number)

    def _objects(self) -> Iterator[LogObject]:
        """From `next` until a number is absent."""
        if self._executor is None:
            yield from self._one_by_one(self.next)
            return
        number, ahead = self.next, list[Future[LogObject]]()
        while True:
            while len(ahead) < _READ_AHEAD:
                ahead.append(self._executor.submit(self.get, number))
                number += 1
            try:
                yield ahead.pop(0).result()
            except NoSuchObject:
                return

    def _one_by_one(self, number: int) -> Iterator[LogObject]:
        while True:
            try:
                yield self.get(number)
            except NoSuchObject:
                return
            number += 1

    def get(self, number: int) -> LogObject:
        """Verified. Raises NoSuchObject and Damaged."""
        key = self.keys.log(number)
        found = decode(key, self._asked(lambda: self.bucket.get(key)).data)
        if found.number != number:
            raise damaged(key, f"it claims to be number {found.number}")
        return found

    def _superseded_or_damaged(self, number: int, why: str) -> NoReturn:
        """A number that was deleted may have been used by a worker that took over without success."""
        before = self._head
        self._read_head()
        if self._head == before:
            raise damaged(self.keys.log(number), why)
        raise _Superseded

    def _read_head(self) -> None:
        try:
            stored = self._asked(lambda: self.bucket.get(self.keys.head))
        except NoSuchObject:
            self._head, self._head_version = NO_HEAD, ""
            return
        self._head, self._head_version = decode_head(self.keys.head, stored.data), stored.version

    # Writing.

    def _claim(self, owner: str) -> None:
        """Write our take-over at the end. It counts if nothing from there on was deleted before it was written.
        Otherwise it stays: another worker may have taken over after it, and then it is the fence of the one before.
        """
        number = self.next
        self.term += 1
        try:
            self.append(Kind.TAKE_OVER, owner, [])
        except TakenOver:
            raise _Superseded from None
        self._read_head()
        if self._head.checkpoint > number:
            raise _Superseded

    def append(self, kind: Kind, body: Any, data: Sequence[Buffer]) -> Place:
        """Write the next object, and return where its data are once it is durable. Raises TakenOver, which names the
        new owner; and what `Patience.wait` raises: then it is unknown whether it was written, and nothing more may be.
        """
        number = self.next
        head, checksum = encode(kind, number, self.term, self._writer, self._chain, body, data)
        self._create(number, [head, *data])
        self.next, self._chain = number + 1, checksum
        self._note(kind, number)
        return Place(self.keys.log(number), len(head), checksum)

    def append_checkpoint(self, first: int, directory: Any) -> int:
        """Like `append`. Returns its number."""
        self.append(Kind.CHECKPOINT, [first, directory, self.take_overs], [])
        return self.next - 1

    def place(self, found: LogObject) -> Place:
        return Place(self.keys.log(found.number), found.skip, found.checksum)

    def _create(self, number: int, buffers: Sequence[Buffer]) -> None:
        failures = Failures()
        while not self._try_to_create(number, buffers, failures):
            pass
        self._patience.answered(failures)

    def _try_to_create(self, number: int, buffers: Sequence[Buffer], failures: Failures) -> bool:
        """False if the number is still free."""
        try:
            self.bucket.create(self.keys.log(number), buffers)
        except ObjectExists:
            if not self._is_ours(number):
                raise TakenOver(f"another worker has taken over {self.bucket.url}") from None
        except (BucketForbidden, BucketFull) as error:
            self._patience.wait(failures, error)
            return False
        except BucketFailed as error:
            self._patience.wait(failures, error)
            return self._is_ours(number)
        return True

    def _is_ours(self, number: int) -> bool:
        """False if the number is free. Raises TakenOver if it is another's."""
        try:
            found = self.get(number)
        except NoSuchObject:
            return False
        if found.writer != self._writer:
            name = found.body if found.kind is Kind.TAKE_OVER else "another worker"
            raise TakenOver(f"{name} has taken over {self.bucket.url} (term {found.term}; this one has {self.term})")
        return True

    def check_owner(self) -> None:
        """One request: raise TakenOver if another worker has written the next object. From any thread."""
        self._is_ours(self.next)

    def move_head(self, checkpoint: int, first: int) -> bool:
        """Name the newest checkpoint. False if the head is further on already: a successor has moved it."""
        head = Head(FORMAT, checkpoint, first)
        data = msgspec.json.encode(head)
        while self._head.checkpoint < checkpoint:
            version = self._head_version
            try:
                if version:
                    self._head_version = self._asked(lambda: self.bucket.replace(self.keys.head, data, version))  # noqa: B023
                else:
                    self._head_version = self._asked(lambda: self.bucket.create(self.keys.head, [data]))
                self._head = head
            except (ObjectExists, VersionChanged):
                self._read_head()  # also if an earlier try has had its effect
        return self._head == head

    def delete_before(self, checkpoint: int, first: int, used: Set[str]) -> None:
        """What the head has released: the numbers below `first`, and other checkpoints than this one. Those that are
        `used` as parts stay. Like `delete`.
        """
        before = {number for number in self._deletable if number < first and number != checkpoint}
        self.delete([key for number in sorted(before) if (key := self.keys.log(number)) not in used])
        self._deletable = [number for number in self._deletable if number not in before]

    def delete(self, keys: Sequence[str]) -> None:
        """One try: appends must not wait for it. Raises BucketFailed."""
        if keys:
            self.bucket.delete(keys)

    def orphans(self, used: Set[str]) -> list[str]:
        """What crashes have left, by a listing: numbers below the checkpoint that was read, and parts of earlier terms,
        except those that are `used`. Their writers are fenced: nothing will ever name them. Call it after `take_over`.
        Raises BucketFailed.
        """
        self.move_head(self.base.number, self.base.first)  # its writer may have been interrupted before it did
        first, kept = self.base.first, {*self.take_overs, self.base.number}
        numbers = [(number, key) for number, key in self._listed_numbers() if number < first and number not in kept]
        found = [key for _, key in numbers if key not in used]
        for each in self.bucket.list(self.keys.parts):
            term = self.keys.term_of(each.key)
            if each.key not in used and term is not None and term < self.term:
                found.append(each.key)
        return found

    def create_part(self, number: int, data: Buffer) -> str:
        """Write an object that no one else names; returns its key."""
        key = self.keys.part(self.term, self._writer, number)
        with suppress(ObjectExists):  # an earlier try
            self._asked(lambda: self.bucket.create(key, [data]))
        return key

    @property
    def objects(self) -> int:
        """In the log, with its head."""
        return len(self.take_overs) + len(self._deletable) + 1

    def _asked(self, request: Callable[[], T]) -> T:
        """Repeat a request until it is answered. For requests that may be repeated."""
        failures = Failures()
        while True:
            try:
                answer = request()
            except BucketFailed as error:
                self._patience.wait(failures, error)
            except (NoSuchObject, ObjectExists, VersionChanged):  # these are answers, too
                self._patience.answered(failures)
                raise
            else:
                self._patience.answered(failures)
                return answer

    def get_part(self, key: str, checksum: int) -> bytes:
        """The whole object. Raises NoSuchObject and Damaged."""
        data = self._asked(lambda: self.bucket.get(key).data)
        if not self.keys.is_intact(key, data, checksum):
            raise Damaged(f"object {key} fails its checksum", "Run: penstock store verify URL")
        return data


def reading_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_READ_AHEAD, "penstock-bucket-read")
