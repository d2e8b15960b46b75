"""Ids of streams that cannot resume: they are never used again, over any number of restarts.

The upper half is the connector's incarnation, which is raised and durable before the first of them begins; the lower
half counts. So no single stream has to be remembered for its id's sake.
"""

from penstock.protocol.connector import stream_id_of

COUNTER_BITS = 32
COUNT_MAX = (1 << COUNTER_BITS) - 1
"""Streams of one incarnation: then the next one begins."""


def fleeting_id(incarnation: int, count: int) -> int:
    assert 0 < incarnation <= COUNT_MAX
    assert 0 < count <= COUNT_MAX
    return incarnation << COUNTER_BITS | count


def is_fleeting(stream_id: int, name: str, incarnation: int) -> bool:
    """Whether a stream of this id and name was given one. Those that resume have the id that their name makes."""
    return 0 < stream_id >> COUNTER_BITS <= incarnation and stream_id_of(name) != stream_id
