"""The registry of the streams of a source that is spread over several partitions, and the side that asks it.

Partition 0's shard keeps the registry, in its journal: which partition each stream belongs to, and who has it open. A
stream is open under a *claim*: (partition, term, number). The term is that of the partition's shard, the number grows
with every claim of that term. A partition never changes its shard, so it stands for the shard as well.

    NOTIFY      →  Claim       the claim is written to the partition's journal before NOTIFY_ACK, which only an owner
                               that was not replaced can do
    disconnect  →  Relinquish  with the last stored id; the stream stays with its partition, which has its events
    EOS         →  Relinquish  when all pipelines have completed the stream: any partition may claim it from then on,
                               because none of its events can be overtaken any more
    take-over   →  Begin       the shard's new owner gives up what its predecessors had: their sessions are gone. What
                               has ended, and is not complete, it claims itself, until it is

Commands may be lost, repeated and overtaken. The registry keeps the highest number of each partition, and acts on a
claim only if its number is higher: whatever is not the newest was repeated or overtaken, and its sender asks again
under a new number. A relinquish names its claim exactly. So no order of commands makes a stream active twice, and no
old command takes it away from its session.

Both machines decide, and do no input or output. A command that has changed the registry is answered when it is durable.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from penstock.core.errors import Damaged
from penstock.protocol.connector.frames import NOTHING_YET

LOOKS = 20_000
"""Streams that are looked at without a break: some milliseconds."""

HELD_MAX = 10_000
"""Streams in one answer to a shard that was taken over: below 1 MB."""


class ClaimId(NamedTuple):
    partition: int
    term: int
    number: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A session wants the stream."""

    stream_id: int
    claim: ClaimId


@dataclass(frozen=True, slots=True)
class Relinquish:
    """The session of this claim has gone, or never had the stream. From the claim's own term, or from a successor."""

    stream_id: int
    claim: ClaimId
    term: int
    """Of the sender."""
    last_id: int
    """The last message id that is stored. NOTHING_YET: nothing was stored under this claim."""
    is_complete: bool
    """Every pipeline has completed all events of the stream."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The partition's shard has a new owner: nothing of an older term counts from now on."""

    partition: int
    term: int


Command: TypeAlias = Claim | Relinquish | Begin


# Answers


class Granted(NamedTuple):
    last_id: int
    """The last stored id that the registry knows. The partition may know a later one: the later one counts."""


class Refused(NamedTuple):
    holder: ClaimId
    """Who has it. The partition that was refused is notified when the stream is free."""


class Elsewhere(NamedTuple):
    partition: int
    """The stream is free, but belongs to this partition, which has events of it that are not complete."""


class Full(NamedTuple):
    """The source may have no more streams."""

    limit: int


class Outdated(NamedTuple):
    """The command was overtaken by a later one of the same partition. One that is still wanted needs a new number."""

    number: int
    """The highest that the registry has seen."""


class Replaced(NamedTuple):
    """The sender's shard has a newer owner."""

    term: int


class Done(NamedTuple):
    """Nothing of this claim, or of older terms after Begin, is active because of the sender any more."""


Answer: TypeAlias = Granted | Refused | Elsewhere | Outdated | Replaced | Done | Full


class Outcome(NamedTuple):
    answer: Answer
    is_changed: bool
    """The command belongs into the journal, and its answer waits until it is durable there."""
    freed: tuple[int, ...] = ()
    """Partitions that were refused the stream, which is now free. They are notified once; the notice may be lost."""


class ClaimedStream(msgspec.Struct, gc=False):
    """What the registry knows of one stream. There may be very many: no reference cycles, no garbage collection."""

    partition: int
    term: int
    """Of the claim; 0: it is not active."""
    number: int
    last_id: int = NOTHING_YET
    is_complete: bool = True
    """No partition has events of it that matter: any may claim it."""


def later(one: int, other: int) -> int:
    """The later of two last ids."""
    return other if one == NOTHING_YET else one if other == NOTHING_YET else max(one, other)


class _Look(NamedTuple):
    """At all streams, for those that a partition has under older terms than this one."""

    term: int
    streams: Iterator[int]
    """That are still to be looked at."""
    found: list[int]


class StreamClaims:
    """The registry of one source."""

    def __init__(self) -> None:
        self._streams: dict[int, ClaimedStream] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """By partition: the highest term, and the highest number in it."""
        self._waiting: dict[int, set[int]] = {}
        """By stream: the partitions that were refused. Only in memory: who waits asks again from time to time."""
        self._inherited: dict[int, tuple[int, list[int]]] = {}
        """By partition: a term, and the streams that it may still have under older ones. Only in memory."""
        self._looks: dict[int, _Look] = {}
        """By partition: what finds these for its newest term."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def apply(self, command: Command) -> Outcome:
        match command:
            case Claim():
                return self._claim(command.stream_id, command.claim)
            case Relinquish():
                return self._relinquish(command)
            case Begin():
                return self._begin(command)

    def holder(self, stream_id: int) -> ClaimId | None:
        found = self._streams.get(stream_id)
        return ClaimId(found.partition, found.term, found.number) if found is not None and found.term else None

    def held(self, partition: int, term: int, limit: int = HELD_MAX) -> dict[int, ClaimId]:
        """Streams that the partition has under older terms than this one, which has begun: its owner gives them up,
        and asks again until there are none. The first time, all streams are looked at: see `find_held`.
        """
        deque(self.find_held(partition, term), maxlen=0)
        (_, left), found = self._inherited[partition], dict[int, ClaimId]()
        while left and len(found) < limit:
            stream_id = left.pop()
            if self._is_held(stream_id, partition, term):
                stream = self._streams[stream_id]
                found[stream_id] = ClaimId(partition, stream.term, stream.number)
        left.extend(reversed(found))  # the owner may ask again before it has given them up
        return found

    def find_held(self, partition: int, term: int) -> Iterator[None]:
        """Yields after every LOOKS streams that were looked at, so that others may act: there may be millions. Once the
        term has begun, none is added to what the partition has under older ones, so all who ask meanwhile share one
        look, and one that nobody waits for any more is continued by the next who asks.
        """
        if self._inherited.get(partition, (0, []))[0] == term:
            return
        look = self._looks.get(partition)
        if look is None or look.term != term:
            look = self._looks[partition] = _Look(term, iter([*self._streams]), [])
        while streams := [*islice(look.streams, LOOKS)]:
            look.found.extend(one for one in streams if self._is_held(one, partition, term))
            yield
        if self._looks.get(partition) is look:
            del self._looks[partition]
            look.found.reverse()
            self._inherited[partition] = term, look.found

    def _is_held(self, stream_id: int, partition: int, term: int) -> bool:
        stream = self._streams[stream_id]
        return stream.partition == partition and 0 < stream.term < term

    def _claim(self, stream_id: int, claim: ClaimId) -> Outcome:
        if self.holder(stream_id) == claim:  # repeated
            return Outcome(Granted(self._streams[stream_id].last_id), False)
        if (problem := self._outdated(claim)) is not None:
            return Outcome(problem, False)
        self._newest[claim.partition] = claim.term, claim.number
        answer = self._decide(stream_id, claim)
        if isinstance(answer, Granted):
            self._streams[stream_id] = ClaimedStream(*claim, answer.last_id, is_complete=False)
        elif isinstance(answer, Refused):
            self._waiting.setdefault(stream_id, set()).add(claim.partition)
        return Outcome(answer, True)

    def _decide(self, stream_id: int, claim: ClaimId) -> Answer:
        found = self._streams.get(stream_id)
        if found is None:
            return Granted(NOTHING_YET)
        if found.partition == claim.partition:
            # Within a partition its own table decides, and what it had before is over: its relinquish was lost, or it
            # was claimed under an older term.
            return Granted(found.last_id)
        if found.term:
            return Refused(ClaimId(found.partition, found.term, found.number))
        return Granted(found.last_id) if found.is_complete else Elsewhere(found.partition)

    def _relinquish(self, command: Relinquish) -> Outcome:
        claim, stream_id = command.claim, command.stream_id
        newest = self._newest.get(claim.partition, (0, 0))
        if command.term < max(newest[0], claim.term):
            return Outcome(Replaced(newest[0]), False)
        # A claim that comes after its own relinquish must not be granted.
        number = claim.number if claim.term == command.term else 0
        is_changed = (command.term, number) > newest
        if is_changed:
            self._newest[claim.partition] = command.term, number
        if self.holder(stream_id) != claim:
            return Outcome(Done(), is_changed)
        found = self._streams[stream_id]
        found.term = found.number = 0
        found.is_complete = command.is_complete
        found.last_id = later(found.last_id, command.last_id)
        return Outcome(Done(), True, tuple(sorted(self._waiting.pop(stream_id, ()))))

    def _begin(self, command: Begin) -> Outcome:
        term, _ = self._newest.get(command.partition, (0, 0))
        if command.term < term:
            return Outcome(Replaced(term), False)
        if command.term == term:
            return Outcome(Done(), False)
        self._newest[command.partition] = command.term, 0
        return Outcome(Done(), True)

    def _outdated(self, claim: ClaimId) -> Outdated | Replaced | None:
        term, number = self._newest.get(claim.partition, (0, 0))
        if claim.term < term:
            return Replaced(term)
        return Outdated(number) if claim.term == term and claim.number <= number else None

    # The stored form: a snapshot is one row for each partition and for each stream; commands follow.

    def snapshot(self) -> Iterator[bytes]:
        for partition, (term, number) in self._newest.items():
            yield msgspec.msgpack.encode([_PARTITION, partition, term, number])
        for stream_id, found in self._streams.items():
            yield msgspec.msgpack.encode([_STREAM, stream_id, *msgspec.structs.astuple(found)])

    def restore(self, row: bytes) -> bool:
        """Apply a row of a snapshot, or a command that has changed the registry. Returns whether it is a command.
        Raises Damaged. There may be millions of rows, and the worker waits for them.
        """
        try:
            match msgspec.msgpack.decode(row):
                case [int(kind), int(partition), int(term), int(number)] if kind == _PARTITION:
                    self._newest[partition] = term, number
                    return False
                case [
                    int(kind),
                    int(stream_id),
                    int(partition),
                    int(term),
                    int(number),
                    int(last_id),
                    bool(complete),
                ] if kind == _STREAM:
                    self._streams[stream_id] = ClaimedStream(partition, term, number, last_id, complete)
                    return False
                case fields:
                    self.apply(_command(fields))
                    return True
        except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
            raise Damaged(f"an entry of the registry of streams is not valid: {error}") from None


_PARTITION, _STREAM = 10, 11


def encode(command: Command) -> bytes:
    """As it is sent, and stored in the ledger: MessagePack, the number of its kind and its fields in order."""
    match command:
        case Claim(stream_id, claim):
            return msgspec.msgpack.encode((1, stream_id, claim))
        case Relinquish(stream_id, claim, term, last_id, is_complete):
            return msgspec.msgpack.encode((2, stream_id, claim, term, last_id, is_complete))
        case Begin(partition, term):
            return msgspec.msgpack.encode((3, partition, term))


def decode(data: bytes) -> Command:
    """Raises Damaged."""
    try:
        return _command(msgspec.msgpack.decode(data, type=list))
    except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise Damaged(f"a command to the registry of streams is not valid: {error}") from None


_ANSWERS: tuple[type[Answer], ...] = (Granted, Refused, Elsewhere, Outdated, Replaced, Done, Full)


def encode_answer(answer: Answer) -> bytes:
    """As it is sent: MessagePack, the number of its kind and its fields in order."""
    return msgspec.msgpack.encode([_ANSWERS.index(type(answer)), *answer])


def decode_answer(data: bytes) -> Answer:
    """Raises Damaged."""
    try:
        number, *fields = msgspec.msgpack.decode(data, type=list)
        kind = _ANSWERS[number]
        return kind(*(msgspec.convert(one, hint) for one, hint in zip(fields, _hints(kind), strict=True)))
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
        raise Damaged(f"an answer of the registry of streams is not valid: {error}") from None


def _hints(kind: type[Answer]) -> list[Any]:
    return [*kind.__annotations__.values()]


def _command(fields: Any) -> Command:
    match fields:
        case [1, int(stream_id), [int(partition), int(term), int(number)]]:
            return Claim(stream_id, ClaimId(partition, term, number))
        case [2, int(stream_id), [int(partition), int(term), int(number)], int(own), int(last_id), bool(is_complete)]:
            return Relinquish(stream_id, ClaimId(partition, term, number), own, last_id, is_complete)
        case [3, int(partition), int(term)]:
            return Begin(partition, term)
        case _:
            raise ValueError("it is not a command")


# The side that asks: one partition, under one term of its shard.


class ClaimStep(Enum):
    ASKING = "asking the registry"
    WRITING = "writing the claim"
    ACTIVE = "active"
    LEAVING = "giving the stream up"


class Next(Enum):
    """What the partition does after an answer."""

    WRITE = "write the claim to the journal, then call `written`"
    ASK_AGAIN = "send the new claim"
    REFUSE = "refuse NOTIFY; the registry reports when the stream is free"
    REDIRECT = "send the program to the partition that the stream belongs to"
    ADOPTED = "give the stream up when it is complete"
    STOP = "the shard has a newer owner"
    NOTHING = "the answer is to a command that does not matter any more"


class _Asked(msgspec.Struct):
    step: ClaimStep
    number: int
    last_id: int = NOTHING_YET


class PartitionClaims:
    """The streams that the sessions of one partition have, or want. Commands without an answer are in `unanswered`, and
    are sent until they have one; they may be sent more than once.
    """

    def __init__(self, partition: int, term: int) -> None:
        self.partition, self.term = partition, term
        self._streams: dict[int, _Asked] = {}
        self._unanswered: dict[tuple[int, int], Command] = {}
        """By stream and number."""
        self._number = 0
        self.adopting: set[int] = set()
        """Streams of predecessors that this term is to have, without a session, and has no answer for."""

    def step(self, stream_id: int) -> ClaimStep | None:
        found = self._streams.get(stream_id)
        return None if found is None else found.step

    def last_id(self, stream_id: int) -> int:
        """Of a stream that is being written or active: what the registry knew when it granted the claim."""
        return self._streams[stream_id].last_id

    def number(self, stream_id: int) -> int:
        """Of the last claim of a stream that is asked for, written, active or given up."""
        return self._streams[stream_id].number

    def unanswered(self, limit: int | None = None) -> list[Command]:
        """The oldest ones, in the order in which they are to be sent."""
        return [*islice(self._unanswered.values(), limit)]

    def notify(self, stream_id: int) -> Claim | None:
        """A session wants the stream. None: the partition has it already, and NOTIFY is refused."""
        if stream_id in self._streams:
            return None
        self._streams[stream_id] = _Asked(ClaimStep.ASKING, 0)
        return self._ask(stream_id)

    def _ask(self, stream_id: int) -> Claim:
        self._number += 1
        self._streams[stream_id].number = self._number
        claim = Claim(stream_id, ClaimId(self.partition, self.term, self._number))
        self._unanswered[stream_id, self._number] = claim
        return claim

    def answered(self, command: Claim | Relinquish, answer: Answer) -> Next:
        key = command.stream_id, command.claim.number
        found = self._streams.get(command.stream_id)
        if isinstance(answer, Replaced):
            return Next.STOP
        if self._unanswered.get(key) != command:
            return Next.NOTHING  # a repeated answer
        del self._unanswered[key]
        if isinstance(command, Relinquish):
            if found is not None and (found.step, found.number) == (ClaimStep.LEAVING, key[1]):
                del self._streams[command.stream_id]
            return Next.NOTHING
        assert found is not None
        return self._claimed(command.stream_id, found, answer)

    def _claimed(self, stream_id: int, found: _Asked, answer: Answer) -> Next:
        match answer:
            case Granted(last_id):
                is_adopted = stream_id in self.adopting
                self.adopting.discard(stream_id)
                found.step, found.last_id = ClaimStep.ACTIVE if is_adopted else ClaimStep.WRITING, last_id
                return Next.ADOPTED if is_adopted else Next.WRITE
            case Outdated(number):
                self._number = max(self._number, number)
                self._ask(stream_id)
                return Next.ASK_AGAIN
            case _:
                self.adopting.discard(stream_id)
                del self._streams[stream_id]
                return Next.REDIRECT if isinstance(answer, Elsewhere) else Next.REFUSE

    def written(self, stream_id: int, number: int) -> bool:
        """The claim is durable in the partition's journal. Returns whether NOTIFY is answered: its session may have
        gone.
        """
        found = self._streams.get(stream_id)
        if found is None or (found.step, found.number) != (ClaimStep.WRITING, number):
            return False
        found.step = ClaimStep.ACTIVE
        return True

    def end(self, stream_id: int, last_id: int, *, is_complete: bool) -> Relinquish | None:
        """The session has gone, or the stream has ended and is complete. `last_id`: what is stored, and nothing later
        will be. None: there is nothing to give up.
        """
        found = self._streams.get(stream_id)
        if found is None or found.step is ClaimStep.LEAVING:
            return None
        self._unanswered.pop((stream_id, found.number), None)  # its relinquish comes after it, or prevents it
        found.step = ClaimStep.LEAVING
        return self._give_up(stream_id, ClaimId(self.partition, self.term, found.number), last_id, is_complete)

    def _give_up(self, stream_id: int, claim: ClaimId, last_id: int, is_complete: bool) -> Relinquish:
        command = Relinquish(stream_id, claim, self.term, last_id, is_complete)
        self._unanswered[stream_id, claim.number] = command
        return command

    # After a take-over.

    def begin(self) -> Begin:
        """Sent until it is answered, before `held` is asked for."""
        return Begin(self.partition, self.term)

    def inherit(self, stream_id: int, claim: ClaimId, last_id: int, *, is_complete: bool) -> Relinquish | None:
        """A predecessor had the stream, and its session is gone. None: a session of this term has it, or wants it,
        which supersedes the old claim.
        """
        assert claim.partition == self.partition
        assert claim.term < self.term
        if stream_id in self._streams:
            return None
        return Relinquish(stream_id, claim, self.term, last_id, is_complete)

    def adopt(self, stream_id: int) -> Claim | None:
        """A predecessor had the stream. It has ended, durably, and is not complete: this term has it until `end`. None:
        as `inherit`. Nothing need be written: nothing sends it, and a program that wants it here asks for it here.
        """
        if stream_id in self._streams:
            return None
        self.adopting.add(stream_id)
        return self.notify(stream_id)
