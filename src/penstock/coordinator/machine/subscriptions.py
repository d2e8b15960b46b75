"""Pipelines that read sources of other shards, as pure functions of both shards' states.

At the source shard a subscription stands for all pipelines of one home shard that read one source. It counts as a
pipeline of its own in what is acknowledged and in what may be removed. The home shard sends all of it at once, and
never a difference: how far its pipelines have completed the source, and where they may still read it again. So a
message may be lost, repeated, delayed or overtaken by a later one: only the newest counts.

    home shard                                  source shard
    Place: the source is there, durably
    ── subscribe, with a starting position ──▶  Subscribe: resolved and retained, durably
    ◀────────────────────────── positions ────
    Start: the pipeline reads from there
    ── advance, again and again ─────────────▶  Advance: replaces what the subscription was
    Drop, or a start without the source
    ── unsubscribe ──────────────────────────▶  Unsubscribe: nothing waits for it any more

A message is newer if its (term, number) is higher. The term counts the processes that have served the home shard, in
its own ledger; the number counts the messages of one process about one source. So a process that was replaced can
release nothing once its successor has sent anything, and what it sends before that is true: it was durable. What a
subscription was is kept after its end, because a message from before it may still arrive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.coordinator.machine.commands import (
    Advance,
    Effect,
    Place,
    Serve,
    Subscribe,
    Unsubscribe,
)
from penstock.coordinator.machine.epochs import floors, settled
from penstock.coordinator.machine.state import State, Subscription
from penstock.core.errors import Fenced, LimitExceeded, PipelineError
from penstock.protocol.api.pipelines import Segments

SUBSCRIPTIONS_MAX = 100_000
"""Of all home shards together: all are examined whenever a pipeline or a subscription advances."""

REMOTE_SOURCES_MAX = 10_000
"""Of other shards: each is in every snapshot of the ledger."""

Applied = tuple[State, tuple[Effect, ...]]

# At the source shard.


def subscribe(state: State, command: Subscribe) -> Applied:
    """Retains the source from these positions on, besides what is retained already. Raises Fenced for a message that a
    newer one has overtaken: what it asks for might not be retained.
    """
    key, old = (command.home, command.source), _checked(state, command)
    version = (command.term, command.number)
    if old is not None and version < (old.term, old.number):
        raise Fenced(f"the subscription of shard {command.home} to {command.source!r} has changed since", "Try again.")
    if old is None and len(state.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise LimitExceeded(f"there are already {len(state.subscriptions)} subscriptions of other shards")
    if old is None or old.done is None:
        new = Subscription(*version, (command.pipeline,), command.positions, command.positions)
    else:
        pipelines = tuple(sorted({*old.pipelines, command.pipeline}))
        lowest = [_lower(before, command.positions) for before in (old.done, old.floor)]
        new = Subscription(*version, pipelines, *lowest)
    return _changed(state, key, new)


def advance(state: State, command: Advance) -> Applied:
    """What an older message says does not count any more."""
    old = _checked(state, command)
    if old is not None and (command.term, command.number) <= (old.term, old.number):
        return state, ()
    new = Subscription(command.term, command.number, command.pipelines, command.done, command.floor)
    return _changed(state, (command.home, command.source), new)


def unsubscribe(state: State, command: Unsubscribe) -> Applied:
    old = _checked(state, command)
    if old is not None and (command.term, command.number) <= (old.term, old.number):
        return state, ()
    return _changed(state, (command.home, command.source), Subscription(command.term, command.number, (), None, {}))


def _checked(state: State, command: Subscribe | Advance | Unsubscribe) -> Subscription | None:
    """The subscription until now. Raises Fenced for a process that another one has replaced."""
    seen = max((one.term for (home, _), one in state.subscriptions.items() if home == command.home), default=0)
    if command.term < seen:
        raise Fenced(f"shard {command.home} has a newer owner: term {command.term} was replaced by {seen}")
    return state.subscriptions.get((command.home, command.source))


def _lower(before: Segments, positions: Segments) -> Segments:
    """Nothing is known of a segment that one of them does not name: all of it is retained."""
    names = sorted(before.keys() | positions.keys())
    return {name: min(before.get(name, 0), positions.get(name, 0)) for name in names}


def _changed(state: State, key: tuple[int, str], new: Subscription) -> Applied:
    changed = replace(state, subscriptions={**state.subscriptions, key: new})
    return settled(state, changed, {key[1]})


# At the home shard.


def serve(state: State, command: Serve) -> Applied:  # noqa: ARG001  it has no fields
    return replace(state, term=state.term + 1), ()


def place(state: State, command: Place) -> Applied:
    """A source's place never changes. It stays known after its last pipeline, so that a shard that was away learns of
    the end.
    """
    known = state.remote.get(command.source)
    if known == command.shard:
        return state, ()
    if known is not None:
        raise PipelineError(f"source {command.source!r} is in shard {known}, and cannot be in shard {command.shard}")
    if len(state.remote) >= REMOTE_SOURCES_MAX:
        raise LimitExceeded(f"pipelines of this shard have read {len(state.remote)} sources of other shards")
    return replace(state, remote={**state.remote, command.source: command.shard}), ()


class Holding(NamedTuple):
    """What the pipelines of a home shard need of a source: as in Subscription. Without pipelines: nothing."""

    pipelines: tuple[str, ...]
    done: Segments
    floor: Segments


NOTHING = Holding((), {}, {})


def holding(state: State, source: str) -> Holding:
    readers = tuple(sorted(name for name, pipeline in state.pipelines.items() if source in pipeline.sources))
    if not readers:
        return NOTHING
    return Holding(readers, state.released.get(source, {}), floors(state, source))


@dataclass(slots=True)
class Holdings:
    """What a home shard has to send to source shards, and what they have answered. In memory: a new process sends
    everything again, under its own term.
    """

    shard: int
    term: int
    _number: int = 0
    _wanted: dict[str, Holding] = field(default_factory=dict)
    _answered: dict[str, Holding | None] = field(default_factory=dict)
    _starting: dict[str, int] = field(default_factory=dict)
    """Source → how many starts wait for its positions: until they are in the ledger, nothing is released."""
    _asked: dict[str, int] = field(default_factory=dict)
    """Source → the number of the last message with which a start has asked for it."""

    def subscribe(self, source: str, pipeline: str, positions: Segments) -> Subscribe:
        """A start needs the source. Call `started` when it is in the ledger, or has failed."""
        self._starting[source] = self._starting.get(source, 0) + 1
        return self.subscribe_again(source, pipeline, positions)

    def subscribe_again(self, source: str, pipeline: str, positions: Segments) -> Subscribe:
        """For the same start, whose last message was overtaken by that of another one."""
        self._asked[source] = number = self._next()
        return Subscribe(self.shard, self.term, number, source, pipeline, positions)

    def started(self, source: str, now: Holding) -> None:
        """`now`: what is durable; the next message replaces what the start has retained."""
        self._starting[source] -= 1
        self._wanted[source] = now
        self._answered[source] = None

    def offer(self, source: str, now: Holding) -> None:
        """`now`: what is durable."""
        self._wanted[source] = now

    def due(self, source: str) -> Advance | Unsubscribe | None:
        """The next message about the source; None if all of it was answered, or a start is under way."""
        wanted = self._wanted.get(source)
        if wanted is None or self._starting.get(source) or wanted == self._answered.get(source):
            return None
        head = (self.shard, self.term, self._next(), source)
        return Advance(*head, *wanted) if wanted.pipelines else Unsubscribe(*head)

    def answered(self, message: Advance | Unsubscribe) -> None:
        if self._starting.get(message.source) or message.number < self._asked.get(message.source, 0):
            return  # a start has asked for more since then
        self._answered[message.source] = (
            Holding(message.pipelines, message.done, message.floor) if isinstance(message, Advance) else NOTHING
        )

    def _next(self) -> int:
        self._number += 1
        return self._number


def readers_of(subscriptions: Mapping[tuple[int, str], Subscription], source: str) -> dict[str, Segments]:
    """For people: the pipelines of other shards that read a source, and how far they have completed it."""
    return {
        f"{', '.join(one.pipelines)} of shard {home}": one.done
        for (home, name), one in subscriptions.items()
        if name == source and one.done is not None
    }
