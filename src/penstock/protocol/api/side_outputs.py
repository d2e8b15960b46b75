"""Requests about side outputs: how readers divide an epoch, what tasks have staged for it, and its merge."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.protocol.api.codec import Count, Epoch, Request
from penstock.protocol.api.pipelines import Range, Staged


class SideKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Who registers: one partition of an operator, or one part of what a reader reads. Readers come first in order."""

    is_operator: bool
    operator: str
    """Its name, the same in every attempt and every generation; `INPUT/DIGEST` for a reader."""
    partition: Count
    stage: Count = 0
    """Spark's number: a frame that is used twice is computed twice, and its partitions may be numbered otherwise."""


class ReaderPlan(msgspec.Struct, frozen=True, array_like=True):
    """What each task of a reader reads, and how it decodes it: whoever finds a part missing can decode it."""

    operator: str
    decoding: str
    """The options of the load that decide how it decodes, as JSON."""
    parts: tuple[tuple[Range, ...], ...]


REGISTRATION_FORMAT = 2


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """What a task has staged, all of it durable. Two attempts with the same digest have staged the same events for the
    same reasons.
    """

    key: SideKey
    staged: tuple[Staged, ...]
    digest: Count
    format: Count = 1
    """Format 1 has none of the following fields."""
    attempt: str = ""
    """Of a task that may run its operator on several partitions of a frame, as `coalesce` does: it registers each, in
    order. Empty for what is read by the parts of a plan.
    """
    token: str = ""
    """Of an attempt's registrations, which one it is: a request may arrive twice."""


class MissingPart(msgspec.Struct, frozen=True):
    """A part of an epoch that no task has finished: its events may lack dead letters."""

    epoch: int
    prefix: str
    """Of the epoch's staged segments, in the generation that planned it."""
    key: SideKey
    decoding: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """`merged` is False for an epoch that was merged before."""

    merged: bool
    epoch: int
    missing: Sequence[MissingPart] = ()
    """Parts that no task has finished. If there are any, nothing was merged."""


class MissingParts(msgspec.Struct, frozen=True):
    parts: Sequence[MissingPart]


class PlanReader(Request, frozen=True, kw_only=True):
    generation: Count | None = None
    epoch: Count
    plan: ReaderPlan


class Register(Request, frozen=True, kw_only=True):
    generation: Count | None = None
    epoch: Count
    registration: Registration
    prefix: str = ""
    """For a missing part: where it is missing. A later generation may decode it."""


class AskMissing(Request, frozen=True, kw_only=True):
    """Of the epochs up to this one."""

    generation: Count
    epoch: Epoch
