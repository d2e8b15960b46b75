"""Drives the store on a faulty bucket, with owners that die, owners that sleep through a take-over, and candidates that
are slow.

Everything acknowledged by anyone is there once, in order; no owner writes a byte after another has taken over; and a
bucket holds nothing that nothing needs.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random

import pytest

from penstock.core.errors import DiskFull, StoreFailed, TakenOver, Unavailable
from penstock.core.sizes import KIB
from penstock.core.types import Position
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_verify import verify_bucket
from penstock.store.compaction import Compactor
from penstock.store.file_journal import FileJournal
from penstock.store.settings import BucketSettings
from penstock.store.store import SegmentStore
from penstock.store.verify import verify
from penstock.testing.faulty_bucket import BucketFaults, FaultyBucket, Objects
from penstock.testing.faulty_files import SimulatedCrash
from penstock.testing.memory_files import MemoryFiles
from tests.store.driver import Action, Simulation
from tests.support.seeded_executor import SeededExecutor

UNFOLDED_BYTES_FEW = KIB
"""With so few, syncs fold the log themselves."""

ASLEEP_IN_DELETION = "a zombie that wakes up inside its deletions"
ASLEEP_ACROSS_FOLD = "a zombie that sleeps while its successor folds"
SLOW_CANDIDATE = "a candidate that is interrupted"
REPLACED_MEANWHILE = "a candidate that reads while objects are deleted"
OVERTAKEN = "a candidate that another overtakes"
RARE = (ASLEEP_IN_DELETION, ASLEEP_ACROSS_FOLD, SLOW_CANDIDATE, REPLACED_MEANWHILE, OVERTAKEN)

Owner = tuple[FaultyBucket, BucketFiles, FileJournal, SegmentStore]


def faults_for(random: Random) -> BucketFaults:
    def chance() -> float:
        return random.choice((0.0, 0.0, 0.02, 0.1))

    return BucketFaults(chance(), chance(), chance(), chance(), stale=random.choice((0.0, 0.3)))


def bucket_settings_for(random: Random) -> BucketSettings:
    return BucketSettings(
        cache_bytes=random.choice((1, 64 * KIB)),
        object_bytes_max=random.choice((1, 8)) * KIB,
        groups_max=random.choice((3, 20)),
        unfolded_bytes_max=random.choice((UNFOLDED_BYTES_FEW, 1000 * KIB)),
        linger_seconds=random.choice((0, 60)),
        release_seconds=0,
        placed_bytes_min=random.choice((300, KIB, 1000 * KIB)),
        held_bytes_max=random.choice((0, KIB, 1000 * KIB)),
    )


class BucketSimulation(Simulation):
    """The same operations and the same model; each owner of the shard starts with an empty cache."""

    files: BucketFiles  # type: ignore[assignment]

    def begin(self) -> None:
        self.objects = Objects()
        self.bucket_settings = bucket_settings_for(self.random)
        self.faults = faults_for(self.random)
        self.owners = 0
        self.zombies: list[Owner] = []
        self.seen = Counter[str]()
        """How often this seed had what is rare."""
        self.client = self.new_client()

    def new_client(self) -> FaultyBucket:
        return FaultyBucket(self.objects, self.random, self.faults)

    def open(self) -> None:
        self.files = self.new_files(self.client)
        self.open_journal()

    def new_files(self, client: FaultyBucket) -> BucketFiles:
        self.owners += 1
        name, settings = f"worker {self.owners}", self.bucket_settings
        return BucketFiles(
            client,
            self.new_cache(),
            owner=name,
            settings=settings,
            executor=self.new_executor(),
            sleep=lambda _: None,
        )

    def new_cache(self) -> MemoryFiles:
        return MemoryFiles()

    def new_executor(self) -> Executor | None:
        return None

    def open_journal(self) -> None:
        self.journal = FileJournal(self.files, self.settings)
        self.files.on_failure = self.journal.fail
        self.store = SegmentStore(self.journal, self.settings)
        self.compactor = Compactor(self.store)

    # Faults: the ones of a disk do not happen here.

    def stop(self, kill: bool) -> None:
        self.observe_durable()
        self.client.end()
        self.client = self.new_client()

    def recover(self) -> None:
        self.verify()
        while True:
            if self.random.random() < 0.3:
                self.client.crash_at(self.client.requests + self.random.randint(1, 25))
            try:
                self.open()
                self.client.crash_at(0)
                break
            except SimulatedCrash:
                self.client = self.new_client()
        self.recoveries += 1
        self.check_recovered()

    def verify(self) -> None:
        """A look from outside, without taking over."""
        if self.random.random() < 0.2:
            client = FaultyBucket(self.objects, self.random)
            report = verify(BucketFiles(client, MemoryFiles(), sleep=lambda _: None, read_only=True))
            assert report.is_sound, [*map(str, report.problems)]
            everything = verify_bucket(FaultyBucket(self.objects), MemoryFiles)
            assert everything.is_sound, [*map(str, everything.problems)]

    def crash_soon(self) -> None:
        self.client.crash_at(self.client.requests + self.random.randint(1, 40))

    def fill_disk(self) -> None:
        pass

    def free_disk(self) -> None:
        pass

    def issue(self, change: Callable[[], Position], state: object, *, draining: bool = False) -> None:
        try:
            super().issue(change, state, draining=draining)  # type: ignore[arg-type]
        except DiskFull:
            raise AssertionError("a bucket is not full") from None

    def survive(self, action: Action) -> None:
        with suppress(Unavailable):  # a reader must ask again; nothing else has happened
            super().survive(action)

    def maintain(self) -> None:
        """In the background: the store goes on meanwhile, unless a sync would wait for this very work."""
        if self.bucket_settings.unfolded_bytes_max > UNFOLDED_BYTES_FEW:
            self.client.before_each = self.go_on_meanwhile
        try:
            self.files.maintain()
        finally:
            self.client.before_each = lambda _: None
        if self.random.random() < 0.3:
            self.files.check_owner()

    def go_on_meanwhile(self, request: str) -> None:
        """Except while the background itself appends to the log: then the store waits."""
        if self.random.random() > 0.3 or request.startswith(("create shards/0/log/", "get ")):
            return
        self.client.before_each = lambda _: None
        actions: list[Action] = [self.append, self.append, self.commit, self.commit, self.truncate, self.delete]
        with suppress(Unavailable):
            for _ in range(self.random.randint(1, 4)):
                self.random.choice([*actions, self.compact, self.merge])()
        self.client.before_each = self.go_on_meanwhile

    def check_recovered(self) -> None:
        with self.without_faults():
            super().check_recovered()

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        faults, self.client.faults = self.client.faults, BucketFaults()
        try:
            yield
        finally:
            self.client.faults = faults

    # Several owners.

    def owner(self) -> Owner:
        return self.client, self.files, self.journal, self.store

    def asleep(self) -> None:
        """The owner falls asleep before one of its requests; another takes over, and works; then it wakes up."""
        client, files, journal, _ = zombie = self.owner()
        wake_at, taken_over_at = client.requests + self.random.randint(1, 30), list[int]()

        def sleep(request: str) -> None:
            if client.requests == wake_at:
                client.before_each = lambda _: None
                checkpoint = files._shard.log._head.checkpoint
                taken_over_at.append(self.succeed())
                self.seen[ASLEEP_IN_DELETION] += request.startswith("delete")
                self.seen[ASLEEP_ACROSS_FOLD] += self.files._shard.log._head.checkpoint > checkpoint

        client.before_each = sleep
        try:
            for _ in range(self.random.randint(1, 4)):
                with suppress(Unavailable):  # the fold is tried again
                    self.random.choice((journal.commit, journal.commit, files.maintain, files.check_owner))()
        except TakenOver:
            assert taken_over_at, "nobody has taken over"
        client.before_each = lambda _: None
        if taken_over_at:
            assert files._shard.log.next <= taken_over_at[0], "it has acknowledged what its successor has not read"
            self.zombies.append(zombie)
            self.wake()
        else:
            self.observe_durable()

    def succeed(self) -> int:
        """Another takes over now, and works for a while. Returns the number of its take-over."""
        self.observe_durable()
        self.client = self.new_client()
        self.open()
        self.check_recovered()
        number = self.files._shard.log.take_overs[-1]
        self.work()
        return number

    def work(self) -> None:
        actions: list[Action] = [self.append, self.commit, self.maintain, self.compact, self.truncate, self.delete]
        for _ in range(self.random.randint(0, 25)):
            with suppress(Unavailable):
                self.random.choice(actions)()

    def wake(self) -> None:
        """Whatever former owners try, nothing of it counts."""
        for zombie in self.zombies[-3:]:
            _, files, journal, store = zombie
            durable = journal.durable
            for act in self.random.sample((journal.commit, files.maintain, files.check_owner), 3):
                must_fail = act == journal.commit and bool(journal._steps)
                with pytest.raises(StoreFailed) if must_fail else suppress(StoreFailed, Unavailable):
                    act()
            if not journal.failed:
                store.create(f"zombie-{self.random.random()}")
                with pytest.raises(TakenOver, match="has taken over"):
                    journal.commit()
            assert journal.durable == durable

    def slow_candidate(self) -> None:
        """Another worker takes over while this one goes on, or while a third takes over first."""
        candidate = self.new_client()
        interrupt_at = self.random.randint(1, 20)

        def sleep(_request: str) -> None:
            if candidate.requests == interrupt_at:
                before = self.objects.objects.keys() - set[str]()
                self.go_on()
                self.seen[SLOW_CANDIDATE] += 1
                self.seen[REPLACED_MEANWHILE] += bool(before - self.objects.objects.keys())

        candidate.before_each = sleep
        try:
            files = self.new_files(candidate)
            candidate.before_each = lambda _: None
            files.check_owner()
        except TakenOver:
            assert self.files._shard.log.term > 1, "a third was quicker"
            self.seen[OVERTAKEN] += 1
            return
        self.observe_durable()
        self.zombies.append(self.owner())
        self.client, self.files = candidate, files
        self.open_journal()
        self.check_recovered()
        self.wake()

    def go_on(self) -> None:
        if self.random.random() < 0.5:
            self.zombies.append(self.owner())
            self.succeed()
        else:
            with suppress(TakenOver):  # the candidate has been quick
                self.work()

    def actions(self) -> tuple[list[Action], list[Action], list[Action]]:
        writing: list[Action] = [self.append, self.append, self.append, self.commit, self.create, self.merge]
        usual = [*writing, self.truncate, self.read, self.compact, self.prove, self.maintain]
        rare: list[Action] = [self.seal, self.delete, self.set_attributes, self.create, self.merge]
        return usual, rare, [self.crash_soon, self.power_cut, self.asleep, self.asleep, self.slow_candidate]

    # Invariants.

    def run(self, steps: int = 250) -> None:
        super().run(steps)
        self.check_clean()

    def check_clean(self) -> None:
        """Once the store is drained and someone has looked for orphans, every object has its purpose."""
        self.faults.lost = self.faults.unanswered = self.faults.delayed = self.faults.throttled = 0
        self.faults.stale = 0
        self.objects.delayed.clear()
        self.stop(kill=False)
        self.open()
        self.commit()
        while self.files.maintain():
            pass
        log, directory = self.files._shard.log, self.files._shard.content
        numbers = {*log.take_overs, *log._deletable}
        wanted = {log.keys.log(number) for number in numbers} | directory.part_keys() | {log.keys.head}
        assert set(self.objects.objects) - {log.keys.head} == wanted - {log.keys.head}
        assert len(log._deletable) <= self.bucket_settings.groups_max + 2


class BadCacheSimulation(BucketSimulation):
    """The disk of the cache returns other bytes than were written, or none; threads read ahead, and write beside."""

    cache: MemoryFiles

    def begin(self) -> None:
        super().begin()
        self.bucket_settings = replace(self.bucket_settings, beside_bytes_min=self.random.choice((100, 1000 * KIB)))
        self.rotten_bytes = 0

    def new_cache(self) -> MemoryFiles:
        self.cache = MemoryFiles()
        return self.cache

    def new_executor(self) -> Executor | None:
        return SeededExecutor(self.random)

    def rot(self) -> None:
        """A page is lost, bits flip, or the end of a file is missing."""
        written = [content for _, content in sorted(self.cache._contents.items()) if any(content)]
        if not written:
            return
        content = self.random.choice(written)
        end = len(content.rstrip(b"\0"))
        at, length = self.random.randrange(end), self.random.choice((1, 1, 100, 4 * KIB))
        self.rotten_bytes += length
        match self.random.randrange(4):
            case 0:
                del content[at:]
            case 1:
                content[at : at + length] = bytes(len(content[at : at + length]))
            case _:
                content[at] ^= 1 << self.random.randrange(8)

    def actions(self) -> tuple[list[Action], list[Action], list[Action]]:
        usual, rare, faults = super().actions()
        return [*usual, self.rot], rare, faults


def simulate_bucket(seed: int) -> None:
    """Twice: with a sound disk below the cache, and with a bad one."""
    run(BucketSimulation, seed)
    run(BadCacheSimulation, seed)


def run(kind: type[BucketSimulation], seed: int) -> None:
    try:
        kind(seed).run()
    except Exception:
        raise
    except BaseException as crash:
        if isinstance(crash, KeyboardInterrupt):
            raise
        raise AssertionError(f"{kind.__name__}, seed {seed}: {crash}") from crash
