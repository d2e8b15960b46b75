"""Bugs that somebody might write into the cluster's machines, one at a time. The simulation has to find each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from penstock.bucket.objects import Bucket
from penstock.cluster import assignment, lease
from penstock.cluster.lease_state import LEASE_TIMING, LeaseState, OwnerWatch, OwnLease
from penstock.cluster.records import ShardRecord, WorkerRecord, read_record, worker_key
from penstock.coordinator.machine import subscriptions
from penstock.coordinator.machine.commands import Advance, Subscribe, Unsubscribe
from penstock.coordinator.machine.state import State, Subscription
from penstock.coordinator.machine.subscriptions import Holding, Holdings
from penstock.ingest.stream_claims import (
    Begin,
    ClaimId,
    ClaimStep,
    Done,
    Elsewhere,
    Granted,
    Outcome,
    PartitionClaims,
    Relinquish,
    StreamClaims,
)
from tests.cluster.simulation import cluster, process
from tests.cluster.simulation.log import Part, Registered, ShardLog, segment_of

Patch = Callable[[pytest.MonkeyPatch], None]


class Mutation(NamedTuple):
    name: str
    patch: Patch
    seed: int
    """One that finds it, unless the simulation has changed since: then others do."""


# Leases


def expires_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster, "LEASE_TIMING", replace(LEASE_TIMING, expired=3.0))


def never_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnLease, "state", lambda self, _: LeaseState.HELD if self.winner is None else LeaseState.TAKEN)


def counts_requests(patch: pytest.MonkeyPatch) -> None:
    """The candidate counts until it received the record, not until it asked for it."""
    original = OwnerWatch._quiet
    patch.setattr(OwnerWatch, "_quiet", lambda self, seen, _, answered: original(self, seen, answered, answered))


def renewed_when_answered(patch: pytest.MonkeyPatch) -> None:
    """The owner counts from the answer to its renewal, which may be old."""

    def renew(self: lease.Lease) -> None:
        original(self)
        self._standing._renewed = self._clock()

    original = lease.Lease._renew
    patch.setattr(lease.Lease, "_renew", renew)


def goes_on_silently(patch: pytest.MonkeyPatch) -> None:
    """An owner that was late does not change the shard's record before it goes on."""
    patch.setattr(lease.Lease, "_resume", lease.Lease._is_owner)


def found_out_silently(patch: pytest.MonkeyPatch) -> None:
    """Its take-over had no answer, and others may be about to take over from it."""

    def own(self: lease._Acquisition, shard: ShardRecord, _: str) -> lease._Taken:
        self._known = None
        return self._own(shard)

    patch.setattr(lease._Acquisition, "_own_after_all", own)


def keeps_dead_hosts(patch: pytest.MonkeyPatch) -> None:
    """No host is ever taken for dead that has a record."""
    patch.setattr(
        assignment.LiveHosts,
        "look",
        lambda _self, found, _asked, _answered: tuple(
            assignment.Host(record.worker, record.wants or 0, record.is_drained)
            for record in found
            if record.wants is not None
        ),
    )


def ends_the_living(patch: pytest.MonkeyPatch) -> None:
    """The leader does not check whether those that it takes for dead have woken up meanwhile."""

    def end_dead(bucket: Bucket, dead: WorkerRecord) -> None:
        found = read_record(bucket, worker_key(dead.worker), WorkerRecord)
        lease.end_dead(bucket, dead if found is None else found[0])

    patch.setattr(cluster, "end_dead", end_dead)


def absent_is_dead(patch: pytest.MonkeyPatch) -> None:
    """An owner without a record is not waited for. In the simulation, that hardly ever happens to one that lives."""
    patch.setattr(OwnerWatch, "absent", OwnerWatch.gone)


# The journal


def not_fenced(patch: pytest.MonkeyPatch) -> None:
    """An owner that finds its number taken goes on at the next one."""

    def append(self: ShardLog, entries: Any) -> None:
        data = self._log.prepare(self._term, self.writer, entries)
        while not self._create(data):
            self._length += 1
        self._length += 1

    patch.setattr(ShardLog, "append", append)


def not_durable(patch: pytest.MonkeyPatch) -> None:
    """Remote ends are reported at once."""

    def asked(self: process.Serving, request: process.Request, reply: Callable[[Any], None]) -> None:
        if isinstance(request, process.AskFollow):
            reply(self.followed(request.request))
        else:
            original(self, request, reply)

    original = process.Serving._asked
    patch.setattr(process.Serving, "_asked", asked)


# The registry


def relinquished_by_anybody(patch: pytest.MonkeyPatch) -> None:
    def relinquish(self: StreamClaims, command: Relinquish) -> Outcome:
        holder = self.holder(command.stream_id)
        if holder is not None:
            command = replace(command, claim=holder, term=max(command.term, holder.term))
        return original(self, command)

    original = StreamClaims._relinquish
    patch.setattr(StreamClaims, "_relinquish", relinquish)


def granted_twice(patch: pytest.MonkeyPatch) -> None:
    def decide(self: StreamClaims, stream_id: int, claim: ClaimId) -> Any:
        found = self._streams.get(stream_id)
        return original(self, stream_id, claim) if found is None else Granted(found.last_id)

    original = StreamClaims._decide
    patch.setattr(StreamClaims, "_decide", decide)


def incomplete_streams_move(patch: pytest.MonkeyPatch) -> None:
    def decide(self: StreamClaims, stream_id: int, claim: ClaimId) -> Any:
        answer = original(self, stream_id, claim)
        return Granted(self._streams[stream_id].last_id) if isinstance(answer, Elsewhere) else answer

    original = StreamClaims._decide
    patch.setattr(StreamClaims, "_decide", decide)


def repeated_claims_count(patch: pytest.MonkeyPatch) -> None:
    """A claim that was overtaken or repeated is taken for a new one."""
    patch.setattr(StreamClaims, "_outdated", lambda _self, _claim: None)


def opened_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """A program is answered before the claim is in the journal."""

    def claimed(self: PartitionClaims, stream_id: int, found: Any, answer: Any) -> Any:
        following = original(self, stream_id, found, answer)
        if isinstance(answer, Granted):
            found.step = ClaimStep.ACTIVE
        return following

    original = PartitionClaims._claimed
    patch.setattr(PartitionClaims, "_claimed", claimed)
    patch.setattr(PartitionClaims, "written", lambda self, stream, _: self.step(stream) is ClaimStep.ACTIVE)


def nothing_inherited(patch: pytest.MonkeyPatch) -> None:
    """A new owner does not give up what its predecessor had."""
    patch.setattr(StreamClaims, "held", lambda *_: {})


def last_id_forgotten(patch: pytest.MonkeyPatch) -> None:
    def relinquish(self: StreamClaims, command: Relinquish) -> Outcome:
        return original(self, replace(command, last_id=0))

    original = StreamClaims._relinquish
    patch.setattr(StreamClaims, "_relinquish", relinquish)


def registry_not_durable(patch: pytest.MonkeyPatch) -> None:
    """The registry answers before what it has decided is in its journal."""

    def asked(self: process.Serving, request: process.Request, reply: Callable[[Any], None]) -> None:
        if isinstance(request, process.AskRegistry):
            outcome = self.state.registries[request.source].apply(request.command)
            if outcome.is_changed:
                self._entries.append(Registered(request.source, request.command))
            reply(outcome.answer)
        else:
            original(self, request, reply)

    original = process.Serving._asked
    patch.setattr(process.Serving, "_asked", asked)


def held_before_its_term(patch: pytest.MonkeyPatch) -> None:
    """A new owner gives up what predecessors had before it begins: they may claim more meanwhile."""
    patch.setattr(PartitionClaims, "begin", lambda self: Begin(self.partition, 0))
    patch.setattr(StreamClaims, "_begin", lambda *_: Outcome(Done(), False))


def adopted_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """A new owner opens streams that have ended under a predecessor as if it had claimed them."""

    def inherit(self: process.Serving, part: Part, held: Any) -> None:
        for stream in held:
            if (part.name, stream) in self.state.ended and self.claims[part].notify(stream) is not None:
                self.claims[part]._streams[stream].step = ClaimStep.ACTIVE
                self._ending.add((part, stream))
        original(self, part, held)

    original = process.Serving._inherit
    patch.setattr(process.Serving, "_inherit", inherit)


def given_up_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A stream is given up before what its session has stored is durable."""

    def end(self: process.Serving, key: process.Key) -> None:
        original(self, key)
        self._when_durable.pop()()

    original = process.Serving._end
    patch.setattr(process.Serving, "_end", end)


# Subscriptions


def any_message_counts(patch: pytest.MonkeyPatch) -> None:
    """An older message replaces a newer one."""

    def advance(state: State, command: Advance) -> Any:
        new = Subscription(command.term, command.number, command.pipelines, command.done, command.floor)
        return subscriptions._changed(state, (command.home, command.source), new)

    patch.setattr("penstock.coordinator.machine.apply.advance", advance)


def any_term_counts(patch: pytest.MonkeyPatch) -> None:
    """What a replaced process of the home shard sends is not refused, and the order of terms is not checked."""

    def unsubscribe(state: State, command: Unsubscribe) -> Any:
        new = Subscription(command.term, command.number, (), None, {})
        return subscriptions._changed(state, (command.home, command.source), new)

    patch.setattr("penstock.coordinator.machine.apply.unsubscribe", unsubscribe)


def released_while_starting(patch: pytest.MonkeyPatch) -> None:
    """A home shard releases a source while a start waits for its positions."""

    def due(self: Holdings, source: str) -> Any:
        starting, self._starting = self._starting, {}
        try:
            return original(self, source)
        finally:
            self._starting = starting

    original = Holdings.due
    patch.setattr(Holdings, "due", due)


def started_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    """A pipeline starts before its subscriptions are durable."""

    def starting_on(self: process.Serving, name: str, starting: process.Starting) -> None:
        for source, each in starting.positions.items():
            if isinstance(each, Subscribe):
                starting.positions[source] = {segment_of(source): 0}
        original(self, name, starting)

    original = process.Serving._starting_on
    patch.setattr(process.Serving, "_starting_on", starting_on)


def planned_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    """What is read is released, although it is not complete."""

    def holding(state: State, source: str) -> Holding:
        found = original(state, source)
        pipelines = [state.pipelines[name] for name in found.pipelines]
        done = {
            segment: min(pipeline.position(pipeline.planned, segment) for pipeline in pipelines)
            for segment in found.done
        }
        return found._replace(done=done)

    original = subscriptions.holding
    patch.setattr(process, "holding", holding)


MUTATIONS = [
    Mutation("a lease expires before its owner is late", expires_early, 12),
    Mutation("an owner is never late", never_late, 28),
    Mutation("an owner that finds out late that it is one goes on silently", found_out_silently, 500_438),
    Mutation("shards stay with dead hosts", keeps_dead_hosts, 6),
    Mutation("an owner that has woken up is ended as dead", ends_the_living, 1110),
    Mutation("an owner that was replaced appends", not_fenced, 24),
    Mutation("a remote end is reported before it is durable", not_durable, 56),
    Mutation("anybody gives a stream up", relinquished_by_anybody, 14),
    Mutation("a stream is granted twice", granted_twice, 3),
    Mutation("an incomplete stream changes its partition", incomplete_streams_move, 32),
    Mutation("streams of a predecessor are not given up", nothing_inherited, 48),
    Mutation("the last stored id is lost", last_id_forgotten, 1),
    Mutation("the registry answers before it is durable", registry_not_durable, 0),
    Mutation("ended streams of a predecessor are not claimed", adopted_without_a_claim, 20),
    Mutation("a source is released while a pipeline starts", released_while_starting, 25),
    Mutation("a pipeline starts without its subscription", started_without_an_answer, 3),
    Mutation("a stream is active before its claim is written", opened_before_it_is_written, 0),
    Mutation("an older message about a subscription counts", any_message_counts, 33),
    Mutation("a stream is given up before it is durable", given_up_before_it_is_durable, 20),
    Mutation("a renewal counts from its answer", renewed_when_answered, 255),
    Mutation("a repeated claim counts", repeated_claims_count, 101),
    Mutation("a candidate that slept counts its sleep", counts_requests, 137),
    Mutation("what is planned counts as complete", planned_counts_as_done, 33),
    Mutation("an owner that was late goes on silently", goes_on_silently, 94),
    Mutation("an older end of a subscription counts", any_term_counts, 283),
]
