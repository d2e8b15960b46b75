"""Side outputs: dead letters and late events that tasks stage beside their query, and what is registered about them.

All of an epoch's side outputs have names below the epoch's own staging prefix, so they are swept with it:

    …/side/plan/READER            how a reader with a codec divides the epoch among tasks
    …/side/done/KIND-KEY-PART     the registrations of a key, one after the other
    …/side/merged                 with Spark's own sinks, which staged segments were merged, one name in each line
    …/side/data/ATTEMPT/PORT      the events that an attempt has staged
    …/side/copy/ID/PORT           of what several partitions have staged, each event once
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from uuid import uuid4

import msgpack
import msgspec

from penstock.core.errors import Damaged, UnreadableFormat
from penstock.protocol.api.side_outputs import REGISTRATION_FORMAT, ReaderPlan, Registration, SideKey

SIDE = "side/"
PLANS, DONE = f"{SIDE}plan/", f"{SIDE}done/"

REMEMBERED_MAX = 100_000
"""Events of a port that a task remembers to stage each once: about 15 MB. It may stage one again after so many others:
a merge looks for repeated events in what has more."""

BURIED = "buried"
"""The reader of an epoch's buried events. Its plan has one part, which no task reads, and the reasons as `decoding`."""

_START_OVER = "Start the pipeline from scratch: penstock pipeline reset NAME"


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


def merged_segment(prefix: str) -> str:
    return f"{prefix}{SIDE}merged"


def pack(value: ReaderPlan | Registration) -> bytes:
    return msgspec.msgpack.encode(value)


def unpack_plan(data: bytes, segment: str) -> ReaderPlan:
    """Raises Damaged, which names the segment."""
    try:
        return msgspec.msgpack.decode(data, type=ReaderPlan)
    except msgspec.DecodeError as error:
        raise Damaged(f"segment {segment!r} does not contain the plan of a reader: {error}") from error


def unpack_registrations(data: bytes, segment: str) -> list[Registration]:
    """All that have arrived for a key, in order. Raises Damaged, which names the segment."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        found = [msgspec.convert(one, Registration) for one in unpacker]
    except (msgspec.ValidationError, ValueError, msgpack.UnpackException) as error:
        raise Damaged(f"segment {segment!r} does not contain registrations: {error}") from error
    for one in found:
        if one.format > REGISTRATION_FORMAT:
            raise UnreadableFormat(f"segment {segment!r}", one.format, REGISTRATION_FORMAT, _START_OVER)
    return found


def counting(arrived: Sequence[Registration]) -> list[Registration]:
    """Of the registrations of a key those that count, in the order in which tasks make them: of all attempts' first
    ones that which has arrived first, and so on.
    """
    made, found = Counter[str](), list[Registration]()
    for one in arrived:
        if made[one.attempt] == len(found):
            found.append(one)
        made[one.attempt] += 1
    return found


def counterpart(arrived: Sequence[Registration], given: Registration) -> Registration | None:
    """What a registration is compared with, itself if it has arrived before; None if it is the first of its kind."""
    found = counting(arrived)
    own = [one.token for one in arrived if one.attempt == given.attempt] if given.attempt else []
    number = own.index(given.token) if given.token in own else len(own)
    return found[number] if number < len(found) else None
