"""Attributes of segments that have a meaning: 16-byte keys, i64 values."""

QUOTA = b"penstock.quota\0\0"
"""A segment's own quota in bytes."""

INCARNATION = b"penstock.incarn\0"
"""Of a connector's table of streams: how often ids have been given anew to streams that cannot resume."""

OWN_TIMES = b"penstock.owntime"
"""Of a connector's table of streams: 1 once an event has come with a time of its own; 0 while all that have come since
this is recorded got the time of their arrival; not there while that is unknown."""

NO_VALUE = -(2**63)
"""Stands for an attribute that is not there. No attribute can have this value."""
