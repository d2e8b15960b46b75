"""Attributes of segments that have a meaning: 16-byte keys, i64 values."""

QUOTA = b"penstock.quota\0\0"
"""A segment's own quota in bytes."""

NO_VALUE = -(2**63)
"""Stands for an attribute that is not there. No attribute can have this value."""
