"""The ids of a stream's events. Pure: the last id is an argument, 0 where there is none yet.

A stream that resumes is sent as raw bytes: the id of its last event says where to go on. A cut is a place in the raw
bytes where all records before it are out and none behind it is.

    id = cut << 20                 all up to the cut is stored: go on there
    id = (cut << 20) + n           and n events behind it, as one call's events did not fit into one record:
                                   go on at the cut, and leave out the first n that come

The events of one call that reaches a cut are numbered backwards from it: nobody sees a part of them alone.
"""

from penstock.core.errors import LimitExceeded

CUT_BITS = 20
SINCE_MAX = (1 << CUT_BITS) - 1
"""Events behind a cut, without another one."""


def position(last_id: int) -> int:
    """The cut to go on from."""
    return last_id >> CUT_BITS


def since(last_id: int) -> int:
    """How many of the events behind that cut are stored already."""
    return last_id & SINCE_MAX


def counted(last_id: int, count: int) -> range:
    """Of events that are merely counted."""
    return range(last_id + 1, last_id + count + 1)


def reaching(last_id: int, count: int, cut: int) -> range:
    """Of events, one at least, that are stored in one step and go up to the cut. Raises LimitExceeded."""
    end = cut << CUT_BITS
    return range(end - count + 1, end + 1) if last_id + count <= end else going_on(last_id, count)


def going_on(last_id: int, count: int) -> range:
    """Of events that are stored before the others of the same call. Raises LimitExceeded."""
    if since(last_id) + count > SINCE_MAX:
        raise LimitExceeded(
            f"more than {SINCE_MAX} events without a place to resume from",
            "Use interceptors that make fewer events of a byte.",
        )
    return counted(last_id, count)
