"""What a lease means at a given time. These decide, and do no input or output: time is an argument, in seconds of a
monotonic clock of this machine. No two machines' clocks are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from penstock.cluster.records import ShardRecord, WorkerRecord


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """In seconds. Between `late` and `expired` no worker acts as owner: the difference covers what the clocks of two
    machines differ in that time, and requests under way.
    """

    renew: float = 2.0
    """Also how often a candidate looks."""
    late: float = 4.0
    """An owner that has not renewed for this long must stop serving."""
    expired: float = 6.0
    """A candidate that has seen no renewal for this long may take over."""


LEASE_TIMING = LeaseTiming()

HANDOVER_SECONDS = 0.05
"""How often the two workers of a migration look at the shard's record: sources wait meanwhile."""


# The candidate's side.


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """Why a shard is not ours yet."""

    owner: str
    addresses: Mapping[str, str]
    quiet_seconds: float
    """For how long no renewal was seen."""
    left_seconds: float
    """Until it may be taken over, unless its owner renews."""
    problem: str = ""
    """Why the store could not be asked."""
    is_handover: bool = False
    """The shard is about to move to this worker, or has just moved away from it."""
    is_next: bool = False
    """It is about to move to this one."""


class OwnerWatch:
    """What a candidate has seen of the owner's lease. `worker` is the candidate; one that is drained lets others go
    first.
    """

    def __init__(self, timing: LeaseTiming, worker: str = "", *, is_drained: bool = False) -> None:
        self._timing = timing
        self._worker = worker
        self._grace = timing.expired if is_drained else 0.0
        self._seen: tuple[str, int] | None = None
        self._since = 0.0

    def look(self, owner: WorkerRecord, asked: float, answered: float) -> OwnerSeen | None:
        """None when the owner may be taken for dead. `asked` and `answered` are when the record was requested and
        received: the answer may be as old as the request, so only the time between them is certain.
        """
        if owner.has_ended:
            return self.gone(owner.worker, owner.revision, answered)
        quiet = self._quiet((owner.worker, owner.revision), asked, answered)
        left = self._timing.expired + self._grace - quiet
        is_next = owner.moving_to == self._worker != ""
        seen = OwnerSeen(owner.worker, owner.addresses, quiet, left, is_handover=is_next, is_next=is_next)
        return None if left <= 0 else seen

    def gone(self, owner: str, revision: int, now: float) -> OwnerSeen | None:
        """The owner has stopped. None when others may have what it had."""
        quiet = self._quiet((f"{owner} is gone", revision), now, now)
        return None if quiet >= self._grace else OwnerSeen(owner, {}, quiet, self._grace - quiet)

    def absent(self, owner: str, term: int, now: float) -> OwnerSeen | None:
        """The owner has no record. It may live, if somebody took it for dead and it wakes up: then it writes its record
        again. None when the shard may be taken.
        """
        quiet = self._quiet((f"{owner} is absent", term), now, now)
        left = self._timing.expired + self._grace - quiet
        return None if left <= 0 else OwnerSeen(owner, {}, quiet, left)

    def released(self, shard: ShardRecord, now: float) -> OwnerSeen | None:
        """The owner has given the shard up for a successor, which comes first. None when the shard may be taken."""
        if shard.successor == self._worker:
            return None
        quiet = self._quiet((f"{shard.owner} for {shard.successor}", shard.term), now, now)
        left = self._timing.expired + self._grace - quiet
        seen = OwnerSeen(shard.owner, {}, quiet, left, is_handover=shard.owner == self._worker)
        return None if left <= 0 else seen

    def _quiet(self, seen: tuple[str, int], asked: float, answered: float) -> float:
        """For how long the same thing has been seen."""
        if self._seen != seen:
            self._seen, self._since = seen, answered
        return max(asked - self._since, 0.0)

    def pause(self, waiting: OwnerSeen) -> float:
        """Until the next look."""
        return min(HANDOVER_SECONDS if waiting.is_handover else self._timing.renew, waiting.left_seconds)


# The owner's side.


class LeaseState(Enum):
    HELD = "held"
    LATE = "late"
    """Not renewed in time: others may take over. Held again after a renewal, if none has."""
    TAKEN = "taken"
    """Another worker owns the shard. That is final."""


class OwnLease:
    """What an owner knows of its own lease."""

    def __init__(self, timing: LeaseTiming, asked: float) -> None:
        """`asked`: when the first write was sent. It counts from there, for it may have taken effect at once."""
        self._timing = timing
        self._renewed = asked
        self._is_late = False
        self._attempted: float | None = None
        self.winner: str | None = None
        """Who has the shard now; "" if no worker has."""

    def attempt(self, asked: float) -> None:
        """The next revision is being written. A repeated attempt may succeed because of the first one."""
        if self._attempted is None:
            self._attempted = asked

    def renew(self) -> None:
        """The attempt has succeeded, and the shard is still ours if it was late."""
        assert self._attempted is not None
        self._renewed, self._attempted = self._attempted, None
        self._is_late = False

    def lose(self, winner: str) -> None:
        self.winner = winner

    def state(self, now: float) -> LeaseState:
        """Once late, it stays late until `renew`: a clock never makes it valid again."""
        if self.winner is not None:
            return LeaseState.TAKEN
        self._is_late = self._is_late or now - self._renewed >= self._timing.late
        return LeaseState.LATE if self._is_late else LeaseState.HELD

    def due(self) -> float:
        """When to renew."""
        return self._renewed + self._timing.renew

    def late_at(self) -> float:
        return self._renewed + self._timing.late
