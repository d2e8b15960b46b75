"""OTLP's requests as events: the JSON of each signal, times, and limits."""

import gzip
import json
import random
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from penstock.connectors.otlp import records
from penstock.connectors.otlp.records import SIGNALS, JsonMapping, Limits
from penstock.core.errors import LimitExceeded, RequestError

LOG, METRIC, SPAN = SIGNALS
NOW_US = 1_800_000_000_000_000
WIDE = Limits(1 << 20, 1 << 30)
TRACE, PARENT = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b173"
RESOURCE = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
SCOPE = {"name": "my.library", "version": "1.0"}


def logs(*given: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [{"scope": SCOPE, "logRecords": [*given]}]}]}


def converted(signal: records.Signal, request: dict[str, Any], *, is_plain: bool = True) -> list[dict[str, Any]]:
    message = records.parse(signal, json.dumps(request).encode(), is_json=True)
    mapping = JsonMapping(is_plain=is_plain)
    again = records.parse(signal, message.SerializeToString(), is_json=False)
    found = records.events_of(signal, again, mapping, NOW_US, WIDE)
    assert found.rejected == 0
    return [json.loads(value) | {"time_us": time} for value, time in zip(found.values, found.times_us, strict=True)]


def test_a_log_record_is_an_event_with_its_resource_and_scope() -> None:
    record = {
        "timeUnixNano": "1544712660300000000",
        "severityNumber": 10,
        "severityText": "Information",
        "traceId": TRACE.upper(),
        "spanId": PARENT,
        "body": {"stringValue": "Example"},
        "attributes": [
            {"key": "n", "value": {"intValue": "9007199254740993"}},
            {"key": "many", "value": {"arrayValue": {"values": [{"boolValue": True}, {"doubleValue": 1.5}, {}]}}},
            {"key": "map", "value": {"kvlistValue": {"values": [{"key": "b", "value": {"bytesValue": "AQI="}}]}}},
        ],
        "aFieldOfTheFuture": 1,
    }
    (event,) = converted(LOG, logs(record))
    assert event == {
        "signal": "log",
        "resource": {"attributes": {"service.name": "shop"}},
        "scope": SCOPE,
        "timeUnixNano": "1544712660300000000",
        "severityNumber": 10,
        "severityText": "Information",
        "traceId": TRACE,
        "spanId": PARENT,
        "body": "Example",
        "attributes": {"n": 9007199254740993, "many": [True, 1.5, None], "map": {"b": "AQI="}},
        "time_us": 1544712660300000,
    }


def test_with_attributes_of_otlp_they_are_as_its_json_has_them() -> None:
    attributes = [{"key": "n", "value": {"intValue": "1"}}]
    (event,) = converted(LOG, logs({"body": {"stringValue": "x"}, "attributes": attributes}), is_plain=False)
    assert (event["attributes"], event["body"], event["resource"]) == (attributes, {"stringValue": "x"}, RESOURCE)


@pytest.mark.parametrize(
    ("record", "time_us"),
    [
        ({"timeUnixNano": "5000", "observedTimeUnixNano": "9000"}, 5),
        ({"observedTimeUnixNano": "9000"}, 9),
        ({}, NOW_US),
    ],
)
def test_the_time_of_a_log_record_is_its_own_or_when_it_was_observed(record: dict[str, str], time_us: int) -> None:
    (event,) = converted(LOG, logs(record))
    assert event["time_us"] == time_us


def test_a_span_is_an_event_at_its_end() -> None:
    span = {
        "traceId": TRACE,
        "spanId": PARENT,
        "parentSpanId": PARENT,
        "name": "I'm a span",
        "kind": 2,
        "startTimeUnixNano": "1000",
        "endTimeUnixNano": "4000",
        "events": [{"timeUnixNano": "2000", "name": "e", "attributes": [{"key": "a", "value": {"boolValue": False}}]}],
        "links": [{"traceId": TRACE, "spanId": PARENT}],
        "status": {"code": 2, "message": "no"},
    }
    request = {"resourceSpans": [{"schemaUrl": "s", "scopeSpans": [{"spans": [span]}]}]}
    (event,) = converted(SPAN, request)
    assert event == span | {
        "signal": "span",
        "resource": {},
        "scope": {},
        "schemaUrl": "s",
        "events": [{"timeUnixNano": "2000", "name": "e", "attributes": {"a": False}}],
        "time_us": 4,
    }


def test_each_data_point_is_an_event_with_what_its_metric_says() -> None:
    points = [{"timeUnixNano": "1000", "asInt": "3"}, {"timeUnixNano": "2000", "asDouble": "NaN"}]
    metrics = [
        {"name": "m", "unit": "1", "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points}},
        {
            "name": "h",
            "histogram": {"dataPoints": [{"timeUnixNano": "3000", "count": "2", "bucketCounts": ["1", "1"]}]},
        },
        {"name": "empty"},
    ]
    found = converted(METRIC, {"resourceMetrics": [{"scopeMetrics": [{"scope": SCOPE, "metrics": metrics}]}]})
    shared = {"signal": "metric", "resource": {}, "scope": SCOPE}
    of_sum = shared | {"name": "m", "unit": "1", "kind": "sum", "aggregationTemporality": 2, "isMonotonic": True}
    assert found == [
        of_sum | points[0] | {"time_us": 1},
        of_sum | points[1] | {"time_us": 2},
        shared
        | {"name": "h", "kind": "histogram", "count": "2", "bucketCounts": ["1", "1"], "timeUnixNano": "3000"}
        | {"time_us": 3},
    ]


ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def any_value(value: Any) -> AnyValue:
    found = AnyValue()
    match value:
        case bool():
            found.bool_value = value
        case int():
            found.int_value = value
        case float():
            found.double_value = value
        case str():
            found.string_value = value
        case list():
            found.array_value.SetInParent()
            found.array_value.values.extend([any_value(one) for one in value])
        case dict():
            found.kvlist_value.SetInParent()
            for key, one in value.items():
                found.kvlist_value.values.add(key=key, value=any_value(one))
    return found


@given(ANY)
def test_any_value_is_the_plain_value_that_was_meant_and_otlp_s_json_of_it_reads_back(value: Any) -> None:
    message = any_value(value)
    plain = JsonMapping(is_plain=True).value(message)
    assert plain == value or str(plain).startswith(("inf", "-inf", "Inf", "-Inf")) or "Infinity" in str(plain)
    again = json_format.ParseDict(JsonMapping(is_plain=False).message(message), AnyValue())
    assert again == message


def test_a_record_that_is_too_large_is_rejected_and_the_others_are_events() -> None:
    records_ = [{"body": {"stringValue": text}} for text in ("a", "b" * 1000, "c")]
    request = records.parse(LOG, json.dumps(logs(*records_)).encode(), is_json=True)
    found = records.events_of(LOG, request, JsonMapping(is_plain=True), NOW_US, Limits(500, 10_000))
    assert [json.loads(value)["body"] for value in found.values] == ["a", "c"]
    assert len(found.times_us) == 2
    reply = records.response(LOG, found, is_json=True)
    partial = json.loads(reply)["partialSuccess"]
    assert (partial["rejectedLogRecords"], "event_bytes_max" in partial["errorMessage"]) == ("1", True)
    parsed = LOG.response.FromString(records.response(LOG, found, is_json=False))
    assert parsed.partial_success.rejected_log_records == 1


def test_a_large_resource_with_many_records_does_not_fill_the_memory() -> None:
    given = logs(*[{} for _ in range(1000)])
    given["resourceLogs"][0]["resource"] = {"attributes": [{"key": "x", "value": {"stringValue": "y" * 10_000}}]}
    request = records.parse(LOG, json.dumps(given).encode(), is_json=True)
    with pytest.raises(LimitExceeded, match="stored_bytes_max"):
        records.events_of(LOG, request, JsonMapping(is_plain=True), NOW_US, Limits(1 << 20, 1 << 20))


def test_without_rejected_records_the_response_is_empty() -> None:
    assert records.response(SPAN, records.Events(), is_json=False) == b""
    assert json.loads(records.response(SPAN, records.Events(), is_json=True)) == {}


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"\xff" * 20, False),
        (b"\x0a\xff", False),
        (b"{", True),
        (b"[]", True),
        (b"null", True),
        (b'{"resourceLogs": 3}', True),
        (b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "zz"}]}]}]}', True),
        (b"[" * 100_000, True),
        (b'{"a":' * 300 + b"1" + b"}" * 300, True),
    ],
)
def test_what_is_not_a_request_is_refused(body: bytes, is_json: bool) -> None:
    with pytest.raises(RequestError, match="is not ExportLogsServiceRequest"):
        records.parse(LOG, body, is_json=is_json)


def test_gzip_is_bounded_and_must_be_whole() -> None:
    assert records.unzipped(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(LimitExceeded):
        records.unzipped(gzip.compress(b"x" * 1001), 1000)
    whole = gzip.compress(b"x" * 1000)
    for broken in (b"", b"x" * 100, whole[:-9], whole + b"x", whole + gzip.compress(b"")[:-1]):
        with pytest.raises(RequestError, match="not gzip"):
            records.unzipped(broken, 1000)


def test_all_members_of_a_gzip_body_are_read() -> None:
    parts = [b"a", b"", random.Random(1).randbytes(200_000), b"b" * 200_000, b"c"]
    body = b"".join(map(gzip.compress, parts))
    assert records.unzipped(body, 400_002) == b"".join(parts)
    with pytest.raises(LimitExceeded):
        records.unzipped(body, 400_001)
    with pytest.raises(RequestError, match="more than 1,000 members"):
        records.unzipped(gzip.compress(b"") * 1001, 10)


def test_a_status_says_when_to_retry_as_google_s_own_messages_read_it() -> None:
    rpc = pytest.importorskip("google.rpc.status_pb2")
    details = pytest.importorskip("google.rpc.error_details_pb2")
    found = rpc.Status.FromString(records.status(14, "später", 300))
    assert (found.code, found.message) == (14, "später")
    retry = details.RetryInfo()
    assert found.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 300
