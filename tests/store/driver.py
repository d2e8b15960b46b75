"""Drives one store on a faulty disk, and compares it with a model.

Random operations, commits at random moments, power cuts and kills in any disk operation, failed fsyncs, a full disk.
After every recovery the store must equal the model after some record that is not older than the last acknowledged one:
everything acknowledged is there once, and of the rest a prefix of whole records.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from crc32c import crc32c

from penstock.core.errors import (
    ConditionFailed,
    DiskFull,
    LimitExceeded,
    QuotaReached,
    SegmentSealed,
    SegmentTruncated,
    StoreFailed,
)
from penstock.core.sizes import KIB
from penstock.core.types import QUOTA, Position
from penstock.store.chapters import file_offset
from penstock.store.compaction import Compactor
from penstock.store.file_journal import FileJournal
from penstock.store.operations import Index, pack
from penstock.store.plan import AttributeUpdate
from penstock.store.record import RECORD_HEADER_BYTES, TRAILER_BYTES, checksum
from penstock.store.segment import Segment
from penstock.store.settings import StoreSettings
from penstock.store.spares import spare_names
from penstock.store.store import SegmentStore
from penstock.store.verify import verify
from penstock.testing.faulty_files import FaultyFiles, SimulatedCrash
from tests.store import model
from tests.store.model import State
from tests.store.small import compact_step

WRITERS = [bytes([number]) * 16 for number in range(1, 4)]
KEYS = [bytes([number]) * 16 for number in range(1, 5)]
SEGMENTS_MAX = 14
STEPS = 400
Action: TypeAlias = Callable[[], None]


def settings_for(random: Random) -> StoreSettings:
    chapter = random.choice((4, 8, 16)) * KIB
    return StoreSettings(
        chapter_bytes=chapter,
        chapter_records_max=random.choice((20, 1000)),
        reserve_bytes=random.choice((2, 3, 4)) * chapter,
        index_cache_bytes=random.choice((1, 64 * KIB)),
        open_files_max=random.choice((2, 100)),
        append_bytes_max=chapter * 2,
        compact_below=random.choice((0.25, 0.9)),
        snapshot_rows_max=2,
    )


class Simulation:
    """One store through all its restarts. Every method may raise SimulatedCrash or StoreFailed: then call `recover`."""

    notes = False
    """Whether merges share their record with an append: it changes what a seed does."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.settings = settings_for(self.random)
        self.begin()
        self.states: list[tuple[Position, State]] = [(Position(0), {})]
        """The model after each record that may still be lost, oldest first; the first one is acknowledged."""
        self.numbers = dict.fromkeys(WRITERS, 0)
        self.names = 0
        self.recoveries = 0
        self.open()

    # Start, stop and recovery.

    def begin(self) -> None:
        """Set up what the store stands on."""
        self.files = FaultyFiles(self.random)

    def open(self) -> None:
        self.journal = FileJournal(self.files, self.settings)
        self.store = SegmentStore(self.journal, self.settings)
        self.compactor = Compactor(self.store)

    def stop(self, kill: bool) -> None:
        """A power cut, or a kill that keeps the page cache."""
        self.observe_durable()
        self.files = self.files.restart() if kill else self.files.crash()

    def recover(self) -> None:
        """Open the store again, through crashes of the recovery itself, and compare it with the model."""
        self.verify()
        while True:
            if self.random.random() < 0.2:
                self.files.crash_at(self.files.operations + self.random.randint(1, 25))
            try:
                self.open()
                self.files._crash_at = None
                break
            except (SimulatedCrash, StoreFailed):
                self.files = self.files.restart() if self.random.random() < 0.3 else self.files.crash()
        self.recoveries += 1
        self.check_spares()
        self.check_recovered()

    def check_spares(self) -> None:
        """A chapter must not start with bytes of another one in it."""
        for name in spare_names(self.files):
            assert not any(self.files._find(name).content), f"{name} is not zeros"

    def verify(self) -> None:
        """What a crash leaves may be torn, but not damaged."""
        if self.random.random() < 0.2:
            report = verify(self.files)
            assert report.is_sound, [*map(str, report.problems)]

    def check_recovered(self) -> None:
        assert not self.store.damage, f"a crash is no damage: {self.store.damage}"
        found = model.observed(self.store)
        for number in reversed(range(len(self.states))):
            state = self.states[number][1]
            if model.comparable(state) == found:
                break
        else:
            raise AssertionError(explain(found, self.states))
        self.states = [(self.journal.durable, state)]
        self.check_accounts()

    # Changes.

    @property
    def state(self) -> State:
        return self.states[-1][1]

    def issue(self, change: Callable[[], Position], state: Callable[[State], State], *, draining: bool = False) -> None:
        """Make a change, which may be refused for lack of room, and record what the store must be after it."""
        try:
            position = change()
        except DiskFull:
            assert self.files._space is not None, "the disk has room"
            assert not draining or not self.journal._spares._spares, "the reserve is there for draining"
            return
        self.states.append((position, state(self.state)))
        self.changed()

    def changed(self) -> None:
        self.check_room_to_close()

    def create(self) -> None:
        if len(self.state) >= SEGMENTS_MAX:
            return
        taken = self.random.random() < 0.5
        name = f"segment-{self.random.randrange(5) if taken else self.names}"
        if name in self.state:
            return
        self.names += 1
        attributes = {QUOTA: self.random.randint(100, 9000)} if self.random.random() < 0.2 else {}
        self.issue(lambda: self.store.create(name, attributes), lambda s: model.created(s, name, attributes))

    def append(self) -> None:
        if (name := self.pick()) is None:
            return
        data = self.random.randbytes(self.length())
        head = self.random.randbytes(self.random.choice((0, 0, 7, 60)))
        writer = self.random.choice([b"", *WRITERS])
        number = self.number(writer)
        segment = self.state[name]
        expected = self.random.choice((None, None, None, len(segment.data), len(segment.data) + 1))
        duplicate = bool(writer) and number <= segment.writers.get(writer, -1)
        quota = segment.attributes.get(QUOTA)

        def change() -> Position:
            appended = self.store.append(
                name, split(self.random, data), writer=writer, number=number, head=head, expected_offset=expected
            )
            assert appended.stored is not duplicate
            assert appended.end == len(segment.data) + (0 if duplicate else len(data))
            return appended.position

        def state(old: State) -> State:
            return old if duplicate else model.appended(old, name, data, head, writer, number)

        try:
            self.issue(change, state)
        except SegmentSealed:
            assert segment.sealed
            assert not duplicate
        except ConditionFailed:
            assert expected == len(segment.data) + 1
        except QuotaReached:
            assert quota is not None
            assert len(segment.data) - segment.start + len(data) > quota
        except LimitExceeded:
            assert quota is not None
            assert len(data) > quota
        else:
            assert duplicate or not segment.sealed
            assert duplicate or expected in (None, len(segment.data))

    def merge(self) -> None:
        names = self.random.sample(sorted(self.state), len(self.state))
        count = self.random.randint(0, len(names) // 2)
        sources = [n for n in names[:count] if not self.state[n].start]
        targets = [n for n in names[count:] if not self.state[n].sealed]
        merges = [(self.random.choice(targets), source) for source in sources] if targets else []
        kept = [n for n in names if n not in {source for _, source in merges}]
        updates = [
            (self.random.choice(kept), self.random.choice(KEYS), self.random.randint(-9, 9))
            for _ in range(self.random.randint(0, 3) if kept else 0)
        ]
        wanted = [AttributeUpdate(*update) for update in updates]
        note = self.note([n for n in kept if not self.state[n].sealed and n not in {target for target, _ in merges}])

        def state(old: State) -> State:
            new = model.merged(old, merges, updates)
            return new if note is None else model.appended(new, note[0], note[1], b"", b"", 0)

        self.issue(lambda: self.store.merge(merges, wanted, note=note), state, draining=True)

    def note(self, names: Sequence[str]) -> tuple[str, bytes] | None:
        """An append that shares the record of a merge."""
        if not self.notes or not names or self.random.random() < 0.2:
            return None
        return self.random.choice(names), self.random.randbytes(self.random.randint(1, 200))

    def truncate(self) -> None:
        if (name := self.pick()) is None:
            return
        segment = self.state[name]
        offset = self.random.choice((len(segment.data), self.random.randint(0, len(segment.data))))
        start = max(offset, segment.start)
        self.issue(
            lambda: self.store.truncate(name, offset), lambda s: model.changed(s, name, start=start), draining=True
        )

    def seal(self) -> None:
        if (name := self.pick()) is not None:
            self.issue(lambda: self.store.seal(name), lambda s: model.changed(s, name, sealed=True))

    def delete(self) -> None:
        if (name := self.pick()) is not None:
            self.issue(lambda: self.store.delete(name), lambda s: model.deleted(s, name), draining=True)

    def set_attributes(self) -> None:
        if (name := self.pick()) is None:
            return
        key, value = self.random.choice(KEYS), self.random.randint(-99, 99)
        expected = self.random.choice((None, self.state[name].attributes.get(key), 5))
        update = AttributeUpdate(name, key, value, expected)
        try:
            self.issue(
                lambda: self.store.update_attributes([update]),
                lambda s: model.merged(s, [], [(name, key, value)]),
            )
        except ConditionFailed:
            assert expected != self.state[name].attributes.get(key)

    # Background work and faults.

    def commit(self) -> None:
        done = self.journal.commit()
        assert done, "a chapter has its room beforehand"
        self.observe_durable()

    def prove(self) -> None:
        self.journal.prove()

    def compact(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            compact_step(self.compactor)
        self.check_accounts()

    def observe_durable(self) -> None:
        """Forget the states that a recovery cannot restore any more."""
        durable = self.journal.durable
        while len(self.states) > 1 and self.states[1][0] <= durable:
            del self.states[0]

    def read(self) -> None:
        if (name := self.pick()) is None:
            return
        self.observe_durable()
        segment, info = self.state[name], self.store.info(name)
        assert info.length <= len(segment.data)
        offset = self.random.randint(0, info.length)
        try:
            part = self.store.read(name, offset, self.random.randint(1, 3000))
        except SegmentTruncated:
            assert offset < segment.start
            return
        assert offset >= segment.start
        assert part == segment.data[offset : offset + len(part)]
        assert part or offset == info.length

    def fill_disk(self) -> None:
        used = sum(len(file.content) for file in self.files._directory.files.values())
        self.files.set_space(used + self.random.randint(0, 2 * self.settings.chapter_bytes))

    def free_disk(self) -> None:
        self.files.set_space(None)

    def fail_sync(self) -> None:
        self.files.fail_next_sync()

    def crash_soon(self) -> None:
        self.files.crash_at(self.files.operations + self.random.randint(1, 40))

    # Choices.

    def pick(self) -> str | None:
        return self.random.choice(sorted(self.state)) if self.state else None

    def length(self) -> int:
        large = self.settings.chapter_bytes
        return self.random.choice((0, 1, 30, 200, self.random.randint(0, 1000), self.random.randint(0, large)))

    def number(self, writer: bytes) -> int:
        """The writer's next number, or one that was used before."""
        if not writer:
            return 0
        if self.random.random() < 0.25:
            return self.random.randint(0, self.numbers[writer])
        self.numbers[writer] += self.random.randint(1, 3)
        return self.numbers[writer]

    # Invariants.

    def check_accounts(self) -> None:
        """Live bytes equal a recount from the runs, and every run is in an existing chapter."""
        live: dict[Position, int] = {}
        for segment in self.store.table:
            for chapter, count in live_runs(segment):
                live[chapter] = live.get(chapter, 0) + count
        assert live == dict(self.store.table.live)
        assert live.keys() <= set(self.journal.chapters)

    def check_room_to_close(self) -> None:
        """The chapter's index and trailer fit into what is allocated."""
        used = file_offset(self.journal.chapter, self.journal.end)
        index = self.store.indexes.open.encode()
        meta = pack([Index(len(index), checksum([index]))])
        closing = RECORD_HEADER_BYTES + len(meta) + len(index) + TRAILER_BYTES
        assert used + closing <= self.journal._capacity, (used, closing, self.journal._capacity)

    def check_drained(self) -> None:
        """Truncate everything and compact: only the last chapter and the two that guard its snapshot remain."""
        self.free_disk()
        for name in sorted(self.state):
            self.store.delete(name)
        self.states.append((self.journal.end, {}))
        for _ in range(200):
            busy = compact_step(self.compactor)
            self.commit()
            if not busy and not compact_step(self.compactor):
                break
        assert len(self.journal.chapters) <= 3
        assert not self.store.table.live

    def run(self, steps: int = STEPS) -> None:
        for action in plan(self.random, self, steps):
            self.survive(action)
        self.free_disk()
        self.survive(self.commit)
        self.stop(kill=False)
        self.recover_surely()
        self.check_drained()

    def actions(self) -> tuple[list[Action], list[Action], list[Action]]:
        """The usual actions, the rare ones, and faults."""
        writing: list[Action] = [self.append, self.append, self.append, self.commit, self.create, self.merge]
        usual = [*writing, self.truncate, self.read, self.compact, self.prove]
        rare = [self.seal, self.delete, self.set_attributes, self.create, self.merge]
        faults = [self.crash_soon, self.power_cut, self.kill, self.fail_sync, self.fill_disk, self.fill_disk]
        return usual, rare, [*faults, self.free_disk]

    def survive(self, action: Action) -> None:
        """One action. If the process ends during it, the store is recovered."""
        try:
            action()
        except SimulatedCrash:
            self.stop(kill=self.random.random() < 0.3)
            self.recover()
        except StoreFailed:
            assert self.journal.failed
            self.stop(kill=self.random.random() < 0.7)
            self.recover()

    def recover_surely(self) -> None:
        self.open()
        self.check_recovered()

    def power_cut(self) -> None:
        self.stop(kill=False)
        self.recover()

    def kill(self) -> None:
        self.stop(kill=True)
        self.recover()


def plan(random: Random, simulation: Simulation, steps: int) -> list[Action]:
    """The frequency of each action differs from seed to seed: otherwise some things would never accumulate."""
    usual, rare, faults = simulation.actions()
    weights: list[float] = [random.choice((1, 3, 10)) for _ in usual]
    weights += [random.choice((0.1, 1)) for _ in rare]
    weights += [random.choice((0, 0.05, 0.3, 1)) for _ in faults]
    return random.choices([*usual, *rare, *faults], weights, k=steps)


def live_runs(segment: Segment) -> list[tuple[Position, int]]:
    runs = list(segment.runs)
    ends = [run.start for run in runs[1:]] + [segment.length]
    return [(run.chapter, end - max(run.start, segment.start)) for run, end in zip(runs, ends, strict=bool(runs))]


def split(random: Random, data: bytes) -> list[bytes]:
    at = random.randint(0, len(data))
    return [data[:at], data[at:]]


def explain(found: State, states: Sequence[tuple[Position, State]]) -> str:
    """How the store differs from the acknowledged state and from the last one."""
    lines = [f"the store is none of the {len(states)} states that it may be:"]
    for title, state in (("acknowledged", states[0][1]), ("last", states[-1][1])):
        wanted = model.comparable(state)
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                lines.append(f"  {title} {name}: {shorten(wanted.get(name))}")
                lines.append(f"  {'found':>{len(title)}} {name}: {shorten(found.get(name))}")
    return "\n".join(lines)


def shorten(segment: model.ModelSegment | None) -> str:
    if segment is None:
        return "not there"
    return (
        f"start={segment.start} length={len(segment.data)} crc={crc32c(segment.data):08x} sealed={segment.sealed} "
        f"writers={[*segment.writers.values()]} attributes={[*segment.attributes.values()]} heads={len(segment.heads)}"
    )
