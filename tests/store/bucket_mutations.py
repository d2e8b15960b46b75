"""Bugs that somebody might write into the log of a bucket, one at a time. The simulation has to find each."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from penstock.core.errors import BucketFailed, TakenOver
from penstock.core.types import Buffer
from penstock.store.bucket_directory import Range
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_log import Failures, ShardLog
from penstock.store.log_object import Kind
from penstock.store.shard_directory import ShardDirectory
from tests.store.bucket_simulation import BadCacheSimulation, BucketSimulation

SEEDS = 60
"""In which each has to be found."""


class Mutation(NamedTuple):
    name: str
    patch: Callable[[pytest.MonkeyPatch], None]
    seed: int
    """One that finds it, unless the simulation has changed since: then others do."""


def hunt(first: int) -> int | None:
    """The first seed that fails."""
    seeds: list[int] = [first, *range(SEEDS)]
    for seed in seeds:
        for kind in (BucketSimulation, BadCacheSimulation):
            try:
                kind(seed).run()
            except KeyboardInterrupt:
                raise
            except BaseException:
                return seed
    return None


# Fencing


def not_fenced(patch: pytest.MonkeyPatch) -> None:
    """An owner takes what another has written at its number for its own."""

    def is_ours(self: ShardLog, number: int) -> bool:
        try:
            return original(self, number)
        except TakenOver:
            return True

    original = ShardLog._is_ours
    patch.setattr(ShardLog, "_is_ours", is_ours)


def failures_count_as_stored(patch: pytest.MonkeyPatch) -> None:
    """A write whose outcome is unknown is not looked for."""

    def create(self: ShardLog, number: int, buffers: Sequence[Buffer], failures: Failures) -> bool:
        with contextlib.suppress(BucketFailed):
            self.bucket.create(self.keys.log(number), buffers)
        return True

    patch.setattr(ShardLog, "_try_to_create", create)


def own_objects_are_foreign(patch: pytest.MonkeyPatch) -> None:
    """A write that had its effect, and no answer, is taken for another worker's."""

    def is_ours(self: ShardLog, number: int) -> bool:
        if original(self, number):
            raise TakenOver("another worker has taken over")
        return False

    original = ShardLog._is_ours
    patch.setattr(ShardLog, "_is_ours", is_ours)


def take_overs_are_deleted(patch: pytest.MonkeyPatch) -> None:
    """A number that fences becomes free again."""
    patch.setattr(ShardLog, "_note", lambda self, _kind, number: self._deletable.append(number))


def claimed_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A candidate does not check whether the number that it has taken was used before."""

    def claim(self: ShardLog, owner: str) -> None:
        self.term += 1
        self.append(Kind.TAKE_OVER, owner, [])

    patch.setattr(ShardLog, "_claim", claim)


# Reading


def ends_at_a_gap(patch: pytest.MonkeyPatch) -> None:
    """A reader takes a number that was deleted for the end of the log."""
    patch.setattr(ShardLog, "_check_end", lambda _: None)


def old_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A reader goes on behind a newer checkpoint as if it were not there."""

    def read_from(self: ShardLog, start: Any, begin: Any, apply: Any) -> None:
        original(self, start, begin, apply)

    original = ShardLog._read_from
    patch.setattr(ShardLog, "_read_from", read_from)


# Deletions


def head_stays(patch: pytest.MonkeyPatch) -> None:
    """Numbers are deleted although the head still names an older checkpoint."""
    patch.setattr(ShardLog, "move_head", lambda *_: True)


def own_parts_are_orphans(patch: pytest.MonkeyPatch) -> None:
    """Parts of this term, which are being written, are deleted."""

    def orphans(self: ShardLog, used: Any) -> list[str]:
        self.term += 1
        try:
            return original(self, used)
        finally:
            self.term -= 1

    original = ShardLog.orphans
    patch.setattr(ShardLog, "orphans", orphans)


def used_parts_are_deleted(patch: pytest.MonkeyPatch) -> None:
    """Objects of the log that have become parts are deleted with the others."""

    def delete_before(self: ShardLog, checkpoint: int, first: int, used: Any) -> None:
        original(self, checkpoint, first, frozenset())

    original = ShardLog.delete_before
    patch.setattr(ShardLog, "delete_before", delete_before)


def nothing_is_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardLog, "delete", lambda *_: None)


def orphans_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardDirectory, "delete_orphans", lambda _: False)


# Folding


def outdated_folds_count(patch: pytest.MonkeyPatch) -> None:
    """A part has zeros for what was cut off meanwhile, and the log does not say why."""
    patch.setattr(BucketFiles, "_is_outdated", lambda *_: False)


def folded_unverified(patch: pytest.MonkeyPatch) -> None:
    """Whatever the disk of the cache returns gets a new checksum."""

    def bytes_to_fold(self: BucketFiles, node: Any, wanted: Range) -> bytes:
        length = wanted.end - wanted.start
        data = b"" if node is None or node.local is None else node.local.read(wanted.start, length)
        return bytes(data.ljust(length, b"\0"))

    patch.setattr(BucketFiles, "_bytes_to_fold", bytes_to_fold)


MUTATIONS = [
    Mutation("an owner that was replaced appends", not_fenced, 0),
    Mutation("a write that has failed counts as stored", failures_count_as_stored, 0),
    Mutation("an own object is taken for another's", own_objects_are_foreign, 1),
    Mutation("take-overs are deleted", take_overs_are_deleted, 1),
    Mutation("a candidate does not look whether its number was used", claimed_without_a_look, 4),
    Mutation("a reader goes on behind a newer checkpoint", old_checkpoint, 14),
    Mutation("the head stays where it was", head_stays, 0),
    Mutation("parts that are being written are orphans", own_parts_are_orphans, 1),
    Mutation("parts in the log are deleted", used_parts_are_deleted, 0),
    Mutation("nothing is deleted", nothing_is_deleted, 0),
    Mutation("orphans stay", orphans_stay, 0),
    Mutation("bytes are folded unverified", folded_unverified, 0),
]

NOT_FOUND = [
    Mutation("a reader ends at a gap", ends_at_a_gap, 0),
    Mutation("a fold of what was cut off counts", outdated_folds_count, 0),
]
"""The simulation did not find these within 60 seeds."""
