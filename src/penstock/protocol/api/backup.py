"""The messages of a backup that is taken of a running worker: what the worker keeps for it, and up to where it goes."""

from typing import Annotated

import msgspec

from penstock.protocol.api.codec import Count, Epoch, Request

BackupId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""Chosen by the client, so that a request can be repeated."""


class KeepForBackup(Request, frozen=True, kw_only=True):
    """Begin, renew, fix or end a backup."""

    backup: BackupId


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    """For so long the worker keeps everything; it must be renewed before."""


class FixedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    incarnation: int
    epoch: Epoch
    """The last epoch that a checkpoint may have so that the pipeline continues from this position."""


class FixedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """One durable position of the journal, and what the worker's state is there."""

    position: Count
    chapters: list[Count]
    """Where the chapters start that hold everything before the position. The last one is still being written."""
    pipelines: list[FixedPipeline]
