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
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from penstock.connectors.postgres.pgoutput import Value

SETTINGS = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1 "
    "-c lc_monetary=C -c idle_in_transaction_session_timeout=0"
)
"""libpq's `options`: the texts of values do not depend on the role or the database, and a snapshot that waits for room
is not ended.
"""

Convert: TypeAlias = Callable[[bytes], bytes]
"""From the text of a value to its JSON. Raises ValueError for a text that is not UTF-8."""

NULL: Final = b"null"

encode = msgspec.json.Encoder().encode


def _string(text: bytes) -> bytes:
    return encode(text.decode())


def _number(text: bytes) -> bytes:
    # NaN, Infinity, -Infinity
    return text if text[-1:].isdigit() else _string(text)


def _json(text: bytes) -> bytes:
    # In valid JSON, line ends are only between tokens: an event is one line wherever it goes.
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def _timestamp(text: bytes) -> bytes:
    return _string(text.replace(b" ", b"T", 1) if text[:1].isdigit() and text[-1:] != b"C" else text)


def _timestamptz(text: bytes) -> bytes:
    return _timestamp(text[:-3] + b"Z" if text.endswith(b"+00") else text)


def _bytea(text: bytes) -> bytes:
    return b'"%b"' % b64encode(bytes.fromhex(text[2:].decode()))


def _boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


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
    return _CONVERTERS.get(type_oid, _string)


def as_json(convert: Convert, value: Value) -> bytes:
    """A value that is there, or NULL."""
    return convert(value) if isinstance(value, bytes) else NULL


def as_object(fields: Mapping[str, bytes]) -> bytes:
    """An object of values that are JSON."""
    return b"{%b}" % b",".join([b"%b:%b" % (encode(name), value) for name, value in fields.items()])
