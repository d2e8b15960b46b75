"""The registry of the streams of a source with several partitions, and the partitions that ask it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.errors import Damaged
from penstock.ingest import stream_claims
from penstock.ingest.stream_claims import (
    Answer,
    Begin,
    Claim,
    ClaimId,
    ClaimStep,
    Command,
    Done,
    Elsewhere,
    Full,
    Granted,
    Next,
    Outdated,
    PartitionClaims,
    Refused,
    Relinquish,
    Replaced,
    StreamClaims,
    decode,
    decode_answer,
    encode,
    encode_answer,
    later,
)
from penstock.protocol.connector.frames import NOTHING_YET

STREAM = 7


def claim(partition: int, number: int, term: int = 1, stream_id: int = STREAM) -> Claim:
    return Claim(stream_id, ClaimId(partition, term, number))


def given_up(of: Claim, last_id: int = NOTHING_YET, *, term: int | None = None, is_complete: bool = True) -> Relinquish:
    return Relinquish(of.stream_id, of.claim, term or of.claim.term, last_id, is_complete)


def answers(registry: StreamClaims, *commands: Command) -> list[Answer]:
    return [registry.apply(command).answer for command in commands]


# The registry


def test_a_stream_that_is_active_is_refused_elsewhere() -> None:
    registry = StreamClaims()
    assert answers(registry, claim(0, 1), claim(1, 1)) == [Granted(NOTHING_YET), Refused(ClaimId(0, 1, 1))]
    assert registry.holder(STREAM) == (0, 1, 1)


def test_a_complete_stream_is_claimed_elsewhere_with_the_last_stored_id() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    assert answers(registry, first, given_up(first, 41)) == [Granted(NOTHING_YET), Done()]
    assert registry.holder(STREAM) is None
    assert answers(registry, claim(1, 1)) == [Granted(41)]


def test_a_stream_with_events_that_are_not_complete_stays_with_its_partition() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    answers(registry, first, given_up(first, 41, is_complete=False))
    assert answers(registry, claim(1, 1), claim(0, 2)) == [Elsewhere(0), Granted(41)]


def test_who_was_refused_is_notified_once_when_the_stream_is_free() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    answers(registry, first, claim(2, 1), claim(1, 1), claim(1, 2))
    assert registry.apply(given_up(first)).freed == (1, 2)
    second = claim(1, 3)
    registry.apply(second)
    assert registry.apply(given_up(second)).freed == ()


def test_repeated_commands_have_the_same_answers_and_change_nothing() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    assert [registry.apply(first).is_changed for _ in range(3)] == [True, False, False]
    assert answers(registry, first, given_up(first, 5), given_up(first, 5)) == [Granted(NOTHING_YET), Done(), Done()]
    assert not registry.apply(given_up(first, 5)).is_changed
    assert registry.apply(first).answer == Outdated(1), "it was given up since"


def test_a_claim_that_comes_after_its_relinquish_is_not_granted() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    assert answers(registry, given_up(first), first) == [Done(), Outdated(1)]
    assert registry.holder(STREAM) is None


def test_a_claim_that_was_overtaken_needs_a_new_number() -> None:
    registry = StreamClaims()
    assert answers(registry, claim(0, 2), claim(0, 1, stream_id=8)) == [Granted(NOTHING_YET), Outdated(2)]
    assert answers(registry, claim(0, 3, stream_id=8)) == [Granted(NOTHING_YET)]


def test_only_the_partition_that_has_a_stream_gives_it_up() -> None:
    registry, first = StreamClaims(), claim(0, 1)
    registry.apply(first)
    for other in (claim(1, 1), claim(0, 1, stream_id=8), claim(0, 2), claim(0, 1, term=2)):
        assert registry.apply(given_up(other, 9)).answer == Done()
        assert registry.holder(STREAM) == first.claim


def test_after_a_take_over_nothing_of_the_older_term_counts() -> None:
    registry, old = StreamClaims(), claim(0, 5)
    assert answers(registry, old, Begin(0, 2)) == [Granted(NOTHING_YET), Done()]
    late: list[Command] = [claim(0, 6, stream_id=8), given_up(old, 3), Begin(0, 1)]
    assert answers(registry, *late) == [Replaced(2)] * 3
    assert registry.holder(STREAM) == old.claim, "its successor gives it up"
    assert registry.held(0, 2) == {STREAM: old.claim}
    assert answers(registry, given_up(old, 3, term=2), claim(1, 1)) == [Done(), Granted(3)]
    assert registry.held(0, 2) == {}


def test_a_successor_supersedes_what_its_predecessor_had() -> None:
    registry, old = StreamClaims(), claim(0, 5)
    assert answers(registry, old, claim(0, 1, term=2)) == [Granted(NOTHING_YET)] * 2
    assert answers(registry, given_up(old, 3, term=2)) == [Done()]
    assert registry.holder(STREAM) == (0, 2, 1)


def test_what_is_held_comes_in_parts() -> None:
    registry = StreamClaims()
    answers(registry, *(claim(0, number, stream_id=number) for number in range(1, 6)), claim(1, 1, stream_id=9))
    answers(registry, Begin(0, 2))
    assert [*registry.held(0, 2, limit=2)] == [1, 2]
    assert len(registry.held(0, 2)) == 5
    answers(registry, *(given_up(claim(0, number, stream_id=number), 3, term=2) for number in (1, 2, 4)))
    assert [*registry.held(0, 2)] == [3, 5]


def test_streams_are_looked_at_once_in_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_claims, "LOOKS", 2)
    registry = StreamClaims()
    answers(registry, *(claim(0, number, stream_id=number) for number in range(1, 6)), Begin(0, 2))
    assert len([*registry.find_held(0, 2)]) == 3
    assert len(registry.held(0, 2)) == 5
    assert [*registry.find_held(0, 2)] == []
    answers(registry, claim(0, 1, stream_id=3, term=2), Begin(0, 3))
    assert len([*registry.find_held(0, 3)]) == 3
    assert registry.held(0, 3)[3] == ClaimId(0, 2, 1)


def test_all_who_ask_at_the_same_time_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_claims, "LOOKS", 2)
    registry = StreamClaims()
    answers(registry, *(claim(0, number, stream_id=number) for number in range(1, 6)), Begin(0, 2))
    left_soon, first, second = (registry.find_held(0, 2) for _ in range(3))
    next(left_soon)
    del left_soon
    next(first)
    assert [*second] == [None]
    assert [*first] == []
    assert [*registry.held(0, 2)] == [1, 2, 3, 4, 5]


def test_commands_between_looks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_claims, "LOOKS", 2)
    registry = StreamClaims()
    answers(registry, *(claim(0, number, stream_id=number) for number in range(1, 6)), Begin(0, 2))
    looking = registry.find_held(0, 2)
    next(looking)
    answers(registry, given_up(claim(0, 1, stream_id=1), term=2), given_up(claim(0, 5, stream_id=5), term=2))
    assert answers(registry, claim(1, 1, stream_id=5), claim(0, 1, term=2, stream_id=8)) == [Granted(NOTHING_YET)] * 2
    assert [*looking] == [None, None]
    assert [*registry.held(0, 2)] == [2, 3, 4]


# The partition


def test_a_claim_is_written_before_the_stream_is_active() -> None:
    registry, partition = StreamClaims(), PartitionClaims(0, 1)
    asked = partition.notify(STREAM)
    assert asked is not None
    assert partition.unanswered() == [asked]
    assert partition.notify(STREAM) is None, "it is open here"
    assert partition.answered(asked, registry.apply(asked).answer) is Next.WRITE
    assert (partition.step(STREAM), partition.unanswered()) == (ClaimStep.WRITING, [])
    assert partition.written(STREAM, asked.claim.number)
    assert partition.step(STREAM) is ClaimStep.ACTIVE


def test_a_session_that_goes_while_it_asks_gives_up_what_it_may_get() -> None:
    registry, partition = StreamClaims(), PartitionClaims(0, 1)
    asked = partition.notify(STREAM)
    assert asked is not None
    gone = partition.end(STREAM, NOTHING_YET, is_complete=True)
    assert gone is not None
    assert partition.unanswered() == [gone]
    granted = registry.apply(asked).answer
    assert partition.answered(asked, granted) is Next.NOTHING
    assert not partition.written(STREAM, asked.claim.number)
    partition.answered(gone, registry.apply(gone).answer)
    assert partition.step(STREAM) is None
    assert registry.holder(STREAM) is None


def test_a_claim_that_was_overtaken_is_made_again() -> None:
    partition = PartitionClaims(0, 1)
    asked = partition.notify(STREAM)
    assert asked is not None
    assert partition.answered(asked, Outdated(12)) is Next.ASK_AGAIN
    assert partition.unanswered() == [claim(0, 13)]


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        (Refused(ClaimId(1, 1, 1)), Next.REFUSE),
        (Elsewhere(1), Next.REDIRECT),
        (Replaced(2), Next.STOP),
        (Full(9), Next.REFUSE),
    ],
)
def test_a_session_that_does_not_get_a_stream_is_answered(answer: Answer, following: Next) -> None:
    partition = PartitionClaims(0, 1)
    asked = partition.notify(STREAM)
    assert asked is not None
    assert partition.answered(asked, answer) is following


def test_a_new_owner_has_an_ended_stream_until_it_is_complete() -> None:
    registry, old = StreamClaims(), claim(0, 5)
    answers(registry, old, Begin(0, 2))
    new = PartitionClaims(0, 2)
    adopted = new.adopt(STREAM)
    assert adopted is not None
    assert new.adopting == {STREAM}
    assert new.notify(STREAM) is None, "a session asks again"
    assert new.answered(adopted, registry.apply(adopted).answer) is Next.ADOPTED
    assert (new.adopting, new.step(STREAM)) == (set(), ClaimStep.ACTIVE)
    assert registry.held(0, 2) == {}
    assert answers(registry, claim(1, 1)) == [Refused(adopted.claim)]
    command = new.end(STREAM, 41, is_complete=True)
    assert command is not None
    assert answers(registry, command, claim(1, 2)) == [Done(), Granted(41)]
    assert PartitionClaims(0, 2).adopt(STREAM) is not None


def test_a_stream_that_a_session_has_asked_for_is_not_adopted() -> None:
    claims = PartitionClaims(0, 2)
    claims.notify(STREAM)
    assert claims.adopt(STREAM) is None
    assert not claims.adopting


def test_a_new_owner_gives_up_what_has_no_session() -> None:
    partition = PartitionClaims(0, 2)
    old = ClaimId(0, 1, 9)
    assert partition.inherit(STREAM, old, 5, is_complete=False) == Relinquish(STREAM, old, 2, 5, False)
    partition.notify(STREAM)
    assert partition.inherit(STREAM, old, 5, is_complete=False) is None


# The stored form

_small = st.integers(0, 2**64 - 1)
_ids = st.builds(ClaimId, _small, _small, _small)
commands = st.one_of(
    st.builds(Claim, _small, _ids),
    st.builds(Relinquish, _small, _ids, _small, _small, st.booleans()),
    st.builds(Begin, _small, _small),
)


@given(commands)
def test_a_command_is_what_was_encoded(command: Command) -> None:
    assert decode(encode(command)) == command


@pytest.mark.parametrize(
    "answer",
    [Granted(2**64 - 1), Refused(ClaimId(1, 2, 3)), Elsewhere(4), Outdated(5), Replaced(6), Done(), Full(7)],
)
def test_an_answer_is_the_same_after_it_was_sent(answer: Answer) -> None:
    found = decode_answer(encode_answer(answer))
    assert found == answer
    assert type(found) is type(answer)


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x91\x63", b"\x91\x00", b"\x92\x00\xa1x"])
def test_what_is_not_an_answer_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode_answer(data)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x90", b"\x91\x63", b"\x92\x01\x01", encode(Begin(1, 2))[:-1]])
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode(data)
    with pytest.raises(Damaged):
        StreamClaims().restore(data)


def restored(rows: Iterable[bytes]) -> StreamClaims:
    registry = StreamClaims()
    for row in rows:
        registry.restore(row)
    return registry


# All together


@dataclass
class Journal:
    """Of a partition: its term, and what it has stored."""

    term: int = 1
    stored: dict[int, int] = field(default_factory=dict)


PARTITIONS, STREAMS = 2, 2
FEW = st.integers(0, 3)
"""Of what there is, the newest few: these matter most."""


class Registry(RuleBasedStateMachine):
    """Partitions, their predecessors that still run, and messages that are lost, repeated and reordered."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = StreamClaims()
        self.rows: list[bytes] = []
        self.journals = [Journal() for _ in range(PARTITIONS)]
        self.owners = [PartitionClaims(partition, 1) for partition in range(PARTITIONS)]
        self.asked: list[tuple[PartitionClaims, Command]] = []
        """Every command that was ever sent: any may arrive at any time, once more or late."""
        self.answers: list[tuple[PartitionClaims, Claim | Relinquish, Answer]] = []
        self.newest: dict[int, int] = {}
        """By stream: the last id that any partition has stored."""

    def owner(self, back: int) -> PartitionClaims:
        return self.owners[-1 - back % len(self.owners)]

    def is_current(self, owner: PartitionClaims) -> bool:
        return self.journals[owner.partition].term == owner.term

    def own_id(self, owner: PartitionClaims, stream: int) -> int:
        return self.journals[owner.partition].stored.get(stream, NOTHING_YET)

    def send(self, owner: PartitionClaims, command: Command | None, *, arrives: bool) -> None:
        if command is not None:
            self.asked.append((owner, command))
            if arrives:
                self.arrive(owner, command, is_answered=True)

    def arrive(self, owner: PartitionClaims, command: Command, *, is_answered: bool) -> None:
        outcome = self.registry.apply(command)
        if outcome.is_changed:
            self.rows.append(encode(command))
        if isinstance(command, Begin):
            if outcome.answer == Done():
                self.inherit(owner, arrives=is_answered)
            return
        self.answers.append((owner, command, outcome.answer))
        if is_answered:
            self.answered(*self.answers[-1])

    def answered(self, owner: PartitionClaims, command: Claim | Relinquish, answer: Answer) -> None:
        if owner.answered(command, answer) is Next.WRITE and self.is_current(owner):
            owner.written(command.stream_id, command.claim.number)

    def inherit(self, owner: PartitionClaims, *, arrives: bool) -> None:
        for stream, old in self.registry.held(owner.partition, owner.term).items():
            own = self.own_id(owner, stream)
            self.send(owner, owner.inherit(stream, old, own, is_complete=own == NOTHING_YET), arrives=arrives)

    # Sessions

    @rule(back=FEW, stream=st.integers(0, STREAMS - 1), arrives=st.booleans())
    def notify(self, back: int, stream: int, arrives: bool) -> None:
        self.send(self.owner(back), self.owner(back).notify(stream), arrives=arrives)

    @rule()
    def store(self) -> None:
        """A message in every stream that is open, unless the journal has a newer owner."""
        for owner in filter(self.is_current, self.owners):
            for stream in range(STREAMS):
                if owner.step(stream) is ClaimStep.ACTIVE:
                    self.store_in(owner, stream)

    def store_in(self, owner: PartitionClaims, stream: int) -> None:
        known = self.known(owner, stream)
        following = 0 if known == NOTHING_YET else known + 1
        self.newest[stream] = self.journals[owner.partition].stored[stream] = following

    def known(self, owner: PartitionClaims, stream: int) -> int:
        known = later(self.own_id(owner, stream), owner.last_id(stream))
        assert known == self.newest.get(stream, NOTHING_YET), "its session knows all that was stored of the stream"
        return known

    @rule(back=FEW, stream=st.integers(0, STREAMS - 1), is_complete=st.booleans(), arrives=st.booleans())
    def end(self, back: int, stream: int, is_complete: bool, arrives: bool) -> None:
        owner = self.owner(back)
        own = self.own_id(owner, stream)
        command = owner.end(stream, own, is_complete=is_complete or own == NOTHING_YET)
        self.send(owner, command, arrives=arrives)

    # Messages

    @precondition(lambda self: self.asked)
    @rule(back=st.integers(0, 20), is_answered=st.booleans())
    def arrive_late(self, back: int, is_answered: bool) -> None:
        self.arrive(*self.asked[-1 - back % len(self.asked)], is_answered=is_answered)

    @precondition(lambda self: self.answers)
    @rule(back=st.integers(0, 20))
    def answer_late(self, back: int) -> None:
        self.answered(*self.answers[-1 - back % len(self.answers)])

    @rule(back=FEW)
    def send_again(self, back: int) -> None:
        for command in self.owner(back).unanswered():
            self.send(self.owner(back), command, arrives=True)

    # Failures

    @rule(partition=st.integers(0, PARTITIONS - 1), begins=st.booleans())
    def take_over(self, partition: int, begins: bool) -> None:
        """The former owner sleeps, and goes on later."""
        self.journals[partition].term += 1
        self.owners.append(PartitionClaims(partition, self.journals[partition].term))
        self.send(self.owners[-1], self.owners[-1].begin(), arrives=begins)

    @rule(is_folded=st.booleans())
    def restart_registry(self, is_folded: bool) -> None:
        if is_folded:
            self.rows = [*self.registry.snapshot()]
        self.registry = restored(self.rows)

    @invariant()
    def a_stream_is_active_once_and_by_its_claim(self) -> None:
        for stream in range(STREAMS):
            active = [o for o in self.owners if self.is_current(o) and o.step(stream) is ClaimStep.ACTIVE]
            assert len(active) <= 1
            for owner in active:
                holder = self.registry.holder(stream)
                assert holder is not None
                assert (holder.partition, holder.term) == (owner.partition, owner.term)
                self.known(owner, stream)

    def teardown(self) -> None:
        """When messages arrive again and all sessions end, every stream can be opened where it belongs."""
        current = [*filter(self.is_current, self.owners)]
        for owner in current:
            self.send(owner, owner.begin(), arrives=True)
            for stream in range(STREAMS):
                self.send(owner, owner.end(stream, self.own_id(owner, stream), is_complete=True), arrives=True)
            for command in owner.unanswered():
                self.send(owner, command, arrives=True)
        for stream in range(STREAMS):
            assert self.registry.holder(stream) is None
            assert any(self.opens(owner, stream) for owner in current)

    def opens(self, owner: PartitionClaims, stream: int) -> bool:
        self.send(owner, owner.notify(stream), arrives=True)
        while owner.step(stream) is ClaimStep.ASKING:
            self.send(owner, owner.unanswered()[0], arrives=True)
        return owner.step(stream) is ClaimStep.ACTIVE


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
