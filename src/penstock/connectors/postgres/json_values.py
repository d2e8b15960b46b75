"""Values of PostgreSQL in text format as JSON, by the OIDs of their types. Pure.

    smallint, integer, bigint, oid, real, double precision, numeric     numbers; NaN and infinities are text
    boolean                                                             true, false
    json, jsonb                                                         the JSON itself
    timestamp, timestamptz                                              ISO 8601: 2026-01-31T10:00:00.5Z
    bytea                                                               base64
    everything else                                                     PostgreSQL's text

The session's settings must be those of SETTINGS, so that the texts are always the same.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Raw

from penstock.connectors.postgres.pgoutput import Value

SETTINGS = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1 "
    "-c lc_monetary=C -c idle_in_transaction_session_timeout=0"
)
"""libpq's `options`: the texts of values do not depend on the role or the database, and a snapshot that waits for room
is not ended.
"""

Json: TypeAlias = Raw | str | bool | None
"""What msgspec encodes without looking at it again."""

Convert: TypeAlias = Callable[[bytes], Json]


def _number(text: bytes) -> Json:
    # NaN, Infinity, -Infinity
    return Raw(text) if text[-1:].isdigit() else text.decode()


def _json(text: bytes) -> Json:
    # In valid JSON, line ends are only between tokens: an event is one line wherever it goes.
    return Raw(text.replace(b"\n", b" ").replace(b"\r", b" "))


def _timestamp(text: bytes) -> Json:
    return text.decode().replace(" ", "T", 1) if text[:1].isdigit() and text[-1:] != b"C" else text.decode()


def _timestamptz(text: bytes) -> Json:
    found = _timestamp(text)
    assert isinstance(found, str)
    return f"{found[:-3]}Z" if found.endswith("+00") else found


def _bytea(text: bytes) -> Json:
    return b64encode(bytes.fromhex(text[2:].decode())).decode()


def _boolean(text: bytes) -> Json:
    return text == b"t"


_NUMBERS: dict[int, Convert] = dict.fromkeys((20, 21, 23, 26, 700, 701, 1700), _number)
_OTHERS: dict[int, Convert] = {
    16: _boolean,
    17: _bytea,
    114: _json,
    1114: _timestamp,
    1184: _timestamptz,
    3802: _json,
}
_CONVERTERS = _NUMBERS | _OTHERS


def converter(type_oid: int) -> Convert:
    return _CONVERTERS.get(type_oid, bytes.decode)


def as_json(convert: Convert, value: Value) -> Json:
    """A value that is there, or NULL."""
    return convert(value) if isinstance(value, bytes) else None
