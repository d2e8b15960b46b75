"""How the writer encodes the rows of a query: made by the driver, and passed to tasks as an option of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import msgspec

from penstock.spark.codecs.codec import AS_IT_IS

CONTENT_TYPE, RECEIVED, PART = "content_type", "__received", "__part"
"""Columns of rows: the content type that they are stored with, the one of the event that they reply to, and the number
of the part that they belong to."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are encoded alike."""

    fields: str | None = None
    """The struct column with their fields; None: they have a `value`, which is written as it is."""
    json: tuple[str, ...] = ()
    """The fields whose texts are JSON already."""
    codec: str | None = None
    """The codec of `value`, for rows with fields too: where this one is wanted, `value` is written as it is."""


@dataclass(frozen=True, slots=True)
class PortEncoding:
    targets: tuple[tuple[str, str], ...]
    """The ports that contain its rows, each with its codec."""
    parts: tuple[Part, ...]
    metadata: str | None = None
    """The column with the rows' own metadata: bytes in msgpack, a map, a struct, or the JSON of one."""
    adds_content_type: bool = False
    """Whether encoded rows are stored with the content type of their codec: replies need it."""
    codec_maps: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Target → content types with their codecs: a reply has the codec of what it replies to."""


Plan = Mapping[str, PortEncoding]
"""By the port that rows name."""


def plan_text(plan: Plan) -> str:
    """For an option of the sink."""
    return msgspec.json.encode(plan).decode()


@cache
def parse_plan(text: str) -> Plan:
    return msgspec.json.decode(text, type=dict[str, PortEncoding])


_TEXTS = ("json", "csv", "string")
"""Codecs that produce text."""


def same_bytes(given: str | None, wanted: str) -> bool:
    """Whether bytes that were read with one codec can be written unchanged where another one is wanted."""
    if AS_IT_IS in (given, wanted) or given in (None, wanted):
        return True
    return wanted == "string" and given.partition("{")[0] in _TEXTS
