"""From OTLP's requests to events, a request at a time, and the responses to them. Pure, except that it needs OTLP's
messages (the package opentelemetry-proto).
"""

import math
import zlib
from base64 import b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from penstock.core.errors import LimitExceeded, RequestError

_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})
_JSON_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
"""Bytes that OTLP's JSON writes in hexadecimal, and not in base64 as protobuf does."""

_ANY_VALUE, _KEY_VALUE = (f"opentelemetry.proto.common.v1.{name}" for name in ("AnyValue", "KeyValue"))

_DEPTH_MAX = 100
"""Of JSON requests; protobuf has the same limit."""

Convert = Callable[[Any], Any]


class Field(NamedTuple):
    name: str
    convert: Convert | None
    """None: the value is one of JSON as it is."""


class _Fields(dict[Any, Field]):
    """By descriptor; made when one is first seen."""

    def __init__(self, make: Callable[[Any], Field]) -> None:
        self._make = make

    def __missing__(self, descriptor: Any) -> Field:
        made = self[descriptor] = self._make(descriptor)
        return made


class JsonMapping:
    """Protobuf's messages as values of JSON, with OTLP's exceptions. With `is_plain`, attributes are a map and values
    are themselves, instead of messages.
    """

    def __init__(self, *, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._fields = _Fields(self._field)
        self._values: dict[str, Convert] = {
            "double_value": _number,
            "bytes_value": _base64,
            "array_value": lambda array: [*map(self.value, array.values)],
            "kvlist_value": lambda pairs: self.attributes(pairs.values),
        }
        """By the field of an AnyValue; the others are values of JSON."""

    def message(self, message: Any) -> dict[str, Any]:
        """Only fields that are set."""
        found, fields = {}, self._fields
        for descriptor, value in message.ListFields():
            name, convert = fields[descriptor]
            found[name] = value if convert is None else convert(value)
        return found

    def _field(self, descriptor: Any) -> Field:
        return Field(descriptor.json_name, self._convert(descriptor))

    def _convert(self, one: Any) -> Convert | None:
        if self._is_plain and one.message_type is not None and one.message_type.full_name == _KEY_VALUE:
            return self.attributes
        each = self._convert_one(one)
        if not one.is_repeated:
            return each
        return list if each is None else lambda values: [*map(each, values[:])]

    def _convert_one(self, one: Any) -> Convert | None:
        match one.cpp_type:
            case one.CPPTYPE_MESSAGE:
                is_value = self._is_plain and one.message_type.full_name == _ANY_VALUE
                return self.value if is_value else self.message
            case one.CPPTYPE_INT64 | one.CPPTYPE_UINT64:
                return str
            case one.CPPTYPE_DOUBLE | one.CPPTYPE_FLOAT:
                return _number
            case one.CPPTYPE_STRING if one.type == one.TYPE_BYTES:
                return bytes.hex if one.name in _IDS else _base64
        return None

    def attributes(self, given: Any) -> dict[str, Any]:
        """A copy as a list is iterated faster than Protocol Buffers' container."""
        value = self.value
        return {one.key: value(one.value) for one in given[:]}

    def value(self, value: Any) -> Any:
        """An AnyValue, as a plain value."""
        name = value.WhichOneof("value")
        if name is None:
            return None
        found, convert = getattr(value, name), self._values.get(name)
        return found if convert is None else convert(found)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@lru_cache(2)
def mapping(is_plain: bool) -> JsonMapping:
    return JsonMapping(is_plain=is_plain)


# The three signals, and the events in their requests.


class Signal(NamedTuple):
    name: str
    """In events."""
    path: str
    service: str
    request: Any
    response: Any
    rejected: str
    """The field of a partial success."""


SIGNALS = (
    Signal(
        "log",
        "/v1/logs",
        "opentelemetry.proto.collector.logs.v1.LogsService",
        logs.ExportLogsServiceRequest,
        logs.ExportLogsServiceResponse,
        "rejected_log_records",
    ),
    Signal(
        "metric",
        "/v1/metrics",
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        "rejected_data_points",
    ),
    Signal(
        "span",
        "/v1/traces",
        "opentelemetry.proto.collector.trace.v1.TraceService",
        traces.ExportTraceServiceRequest,
        traces.ExportTraceServiceResponse,
        "rejected_spans",
    ),
)


@dataclass(slots=True)
class Events:
    """What a request becomes."""

    values: list[bytes] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    rejected: int = 0
    reason: str = ""
    size: int = 0


class Limits(NamedTuple):
    event_bytes_max: int
    stored_bytes_max: int


_encode = msgspec.json.Encoder().encode


def events_of(signal: Signal, request: Any, to_json: JsonMapping, now_us: int, limits: Limits) -> Events:
    """Raises LimitExceeded if they are too large together."""
    found = Events()
    for shared, records in _scopes(signal.name, request, to_json):
        # What all records of a scope have in common is encoded once.
        _add(found, _encode(shared)[:-1], records, now_us, limits)
    return found


def _add(found: Events, head: bytes, records: Iterator["_Timed"], now_us: int, limits: Limits) -> None:
    """One at a time: each repeats the head, and what is too large together is not kept."""
    beginning, one_max, all_max = head + b",", *limits
    values, times_us, size = found.values, found.times_us, found.size
    for time_ns, record in records:
        value = beginning + _encode(record)[1:] if record else head + b"}"
        if len(value) > one_max:
            found.rejected += 1
            found.reason = found.reason or f"a record of {len(value):,} bytes (event_bytes_max)"
            continue
        size += len(value)
        if size > all_max:
            raise LimitExceeded(
                f"its events, with their resources, have more than {all_max:,} bytes (stored_bytes_max)",
                "Send fewer records in one request.",
            )
        values.append(value)
        times_us.append(time_ns // 1000 or now_us)
    found.size = size


_Timed = tuple[int, dict[str, Any]]
"""A record, and its time in nanoseconds; 0 if it has none."""


def _scopes(signal: str, request: Any, to_json: JsonMapping) -> Iterator[tuple[dict[str, Any], Iterator[_Timed]]]:
    """By scope: what its records share, and the records."""
    match signal:
        case "log":
            resources, scopes, records = request.resource_logs, "scope_logs", _logs
        case "metric":
            resources, scopes, records = request.resource_metrics, "scope_metrics", _points
        case _:
            resources, scopes, records = request.resource_spans, "scope_spans", _spans
    for resource in resources:
        of_resource = {"signal": signal, "resource": to_json.message(resource.resource)}
        for scope in getattr(resource, scopes):
            schema = scope.schema_url or resource.schema_url
            shared = of_resource | {"scope": to_json.message(scope.scope)} | ({"schemaUrl": schema} if schema else {})
            yield shared, records(scope, to_json)


def _logs(scope: Any, to_json: JsonMapping) -> Iterator[_Timed]:
    for one in scope.log_records:
        yield one.time_unix_nano or one.observed_time_unix_nano, to_json.message(one)


def _spans(scope: Any, to_json: JsonMapping) -> Iterator[_Timed]:
    for one in scope.spans:
        yield one.end_time_unix_nano or one.start_time_unix_nano, to_json.message(one)


def _points(scope: Any, to_json: JsonMapping) -> Iterator[_Timed]:
    for metric in scope.metrics:
        whole = to_json.message(metric)
        kind = metric.WhichOneof("data")
        if kind is None:
            continue
        data = getattr(metric, kind)
        json_name = metric.DESCRIPTOR.fields_by_name[kind].json_name
        of_data = whole.pop(json_name)
        of_data.pop("dataPoints", None)
        shared = whole | {"kind": json_name} | of_data
        for point in data.data_points:
            yield point.time_unix_nano, shared | to_json.message(point)


# Requests and responses as bytes.


_MEMBERS_MAX = 1000
"""Of a gzip body. Exporters write one, and proxies that join bodies a few; empty ones are 20 bytes each."""

_PIECE_BYTES = 64 << 10
"""What follows a member is copied once for each: at most this much."""


def unzipped(data: bytes, bytes_max: int) -> bytes:
    """All members of gzip. Raises LimitExceeded, and RequestError for what is not gzip."""
    found, view, at = bytearray(), memoryview(data), 0
    for _ in range(_MEMBERS_MAX):
        stage = zlib.decompressobj(wbits=31)
        while not stage.eof:
            piece = view[at : at + _PIECE_BYTES]
            if not piece:
                raise RequestError("the body is not gzip: it ends too early")
            try:
                found += stage.decompress(piece, bytes_max + 1 - len(found))
            except zlib.error as error:
                raise RequestError(f"the body is not gzip: {error}") from None
            if len(found) > bytes_max:
                raise LimitExceeded(f"more than {bytes_max} bytes when it is decompressed (body_bytes_max)")
            at += len(piece) - len(stage.unused_data)
        if at == len(data):
            return bytes(found)
    raise RequestError(f"the body has more than {_MEMBERS_MAX:,} members of gzip")


def parse(signal: Signal, body: bytes, *, is_json: bool) -> Any:
    """The request. Raises RequestError."""
    request = signal.request()
    try:
        if is_json:
            json_format.ParseDict(_with_base64(msgspec.json.decode(body)), request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (msgspec.DecodeError, json_format.ParseError, DecodeError, NotBase64, ValueError, RecursionError) as error:
        form = "JSON" if is_json else "protobuf"
        raise RequestError(f"the body is not {signal.request.DESCRIPTOR.name} as {form}: {error}") from None
    return request


def _with_base64(value: Any, depth: int = 0) -> Any:
    """JSON of OTLP as JSON of protobuf: ids are in base64 there. Raises ValueError."""
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if not depth and not isinstance(value, dict):
        raise ValueError("it is not an object")
    if isinstance(value, list):
        return [_with_base64(one, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _base64(bytes.fromhex(one))
        if name in _JSON_IDS and isinstance(one, str)
        else _with_base64(one, depth + 1)
        for name, one in value.items()
    }


def response(signal: Signal, events: Events, *, is_json: bool) -> bytes:
    """Without `partial_success` if everything was stored."""
    reply = signal.response()
    if events.rejected:
        setattr(reply.partial_success, signal.rejected, events.rejected)
        reply.partial_success.error_message = events.reason
    if is_json:
        return msgspec.json.encode(json_format.MessageToDict(reply))
    encoded: bytes = reply.SerializeToString()
    return encoded


# google.rpc.Status, in which OTLP reports errors. Written by hand: its package is not needed for anything else.


def status(code: int, message: str, retry_seconds: int | None = None) -> bytes:
    """With RetryInfo, if there are seconds."""
    found = _varint(1, code) + _bytes(2, message.encode())
    if retry_seconds is not None:
        retry = _bytes(1, _varint(1, retry_seconds))  # RetryInfo with a Duration
        found += _bytes(3, _bytes(1, b"type.googleapis.com/google.rpc.RetryInfo") + _bytes(2, retry))
    return found


def json_status(code: int, message: str) -> bytes:
    return msgspec.json.encode({"code": code, "message": message})


def _bytes(number: int, data: bytes) -> bytes:
    return _number_of(number << 3 | 2) + _number_of(len(data)) + data


def _varint(number: int, value: int) -> bytes:
    return _number_of(number << 3) + _number_of(value)


def _number_of(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def by_path() -> Mapping[str, Signal]:
    return {signal.path: signal for signal in SIGNALS}
