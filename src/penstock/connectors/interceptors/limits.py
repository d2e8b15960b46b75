"""Limits that interceptors share."""

RECORD_BYTES_MAX = 4 << 20
"""Of one record unless its connector says otherwise: what is kept in memory of a peer that never ends one."""

RECORD_BYTES_LIMIT = 8 << 20
"""The most that a connector may say: an event is stored in one append, which the store limits to 16 MiB."""
