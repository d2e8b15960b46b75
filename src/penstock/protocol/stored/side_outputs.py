"""Side outputs: dead letters and late events that tasks stage beside their query, and what is registered about them.

All of an epoch's side outputs have names below the epoch's own staging prefix, so they are swept with it:

    …/side/plan/READER            how a reader with a codec divides the epoch among tasks
    …/side/done/KIND-KEY-PART     a task's registration: the first one of its key counts
    …/side/data/ATTEMPT/PORT      the events that an attempt has staged
    …/side/copy/ID/PORT           of what several partitions have staged, each event once
"""

from hashlib import blake2b
from typing import TypeVar
from uuid import uuid4

import msgspec

from penstock.core.errors import Damaged
from penstock.protocol.api.side_outputs import ReaderPlan, Registration, SideKey

SIDE = "side/"
PLANS, DONE = f"{SIDE}plan/", f"{SIDE}done/"

REMEMBERED_MAX = 100_000
"""Events of a port that a task remembers to stage each once: about 15 MB. It may stage one again after so many others:
a merge looks for repeated events in what has more."""

BURIED = "buried"
"""The reader of an epoch's buried events. Its plan has one part, which no task reads, and the reasons as `decoding`."""

T = TypeVar("T", ReaderPlan, Registration)


def plan_segment(prefix: str, operator: str) -> str:
    """`prefix`, here and below: that of the epoch."""
    return f"{prefix}{PLANS}{digest_of(operator)}"


def done_segment(prefix: str, key: SideKey) -> str:
    kind = "o" if key.is_operator else "r"
    return f"{prefix}{DONE}{kind}-{digest_of(key.operator)}-{key.stage}-{key.partition}"


def data_prefix(prefix: str) -> str:
    """Of the segments of a new attempt, without the last slash."""
    return f"{prefix}{SIDE}data/{uuid4().hex}"


def copy_prefix(prefix: str) -> str:
    return f"{prefix}{SIDE}copy/{uuid4().hex}"


def digest_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


def pack(value: ReaderPlan | Registration) -> bytes:
    return msgspec.msgpack.encode(value)


def unpack(data: bytes, kind: type[T], segment: str) -> T:
    """Raises Damaged, which names the segment."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"segment {segment!r} does not contain a {kind.__name__}: {error}") from error
