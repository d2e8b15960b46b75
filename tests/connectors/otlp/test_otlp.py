"""`otlp` with OpenTelemetry's own exporters, and with clients that behave badly."""

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import trustme
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from penstock.connectors.otlp.connector import Otlp
from penstock.connectors.otlp.records import SIGNALS
from tests.connectors.real_host import Hosted, hosting
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, eventually

LOGS = SIGNALS[0]
SHOP = Resource({"service.name": "shop"})
PROTOBUF = {"content-type": "application/x-protobuf"}


@asynccontextmanager
async def receiving(folder: Path, *, grpc_port: bool = False, **config: Any) -> AsyncIterator[tuple[Hosted, Otlp]]:
    more = {key: config.pop(key) for key in [*config] if key in ("quota_bytes", "ack", "has_out")}
    given = {"port": 0, "grpc_port": free_port() if grpc_port else None, **config}
    async with hosting(folder, "otlp", given, **more) as hosted:
        await hosted.connected()
        assert isinstance(hosted.connector, Otlp)
        yield hosted, hosted.connector


def events(hosted: Hosted) -> list[dict[str, Any]]:
    return [json.loads(value) for value in hosted.values()]


def log_request(*bodies: str) -> bytes:
    request = LOGS.request()
    scope = request.resource_logs.add().scope_logs.add()
    for body in bodies:
        scope.log_records.add(time_unix_nano=1_000_000).body.string_value = body
    data: bytes = request.SerializeToString()
    return data


def url(otlp: Otlp, signal: str = "logs") -> str:
    return f"{otlp.scheme}://{otlp.addresses[0]}/v1/{signal}"


def send_all_signals(endpoint: str, compression: Compression) -> None:
    """With the SDK, as a program does."""
    loggers = LoggerProvider(SHOP)
    loggers.add_log_record_processor(
        SimpleLogRecordProcessor(OTLPLogExporter(f"{endpoint}/v1/logs", compression=compression))
    )
    tracers = TracerProvider(resource=SHOP)
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces", compression=compression)))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics", compression=compression), 1e9)
    meters = MeterProvider([reader], SHOP)
    try:
        record = LogRecord(
            timestamp=7_000_000, severity_number=SeverityNumber.ERROR, body="it broke", attributes={"a": 1}
        )
        loggers.get_logger("lib", "1").emit(record)
        with tracers.get_tracer("lib").start_as_current_span("outer"):
            tracers.get_tracer("lib").start_span("inner").end()
        meters.get_meter("lib").create_counter("orders", "1").add(3, {"shop": "a"})
    finally:
        meters.shutdown()
        tracers.shutdown()
        loggers.shutdown()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_logs_spans_and_metrics_of_the_sdk_are_events(tmp_path: Path, compression: Compression) -> None:
    async with receiving(tmp_path) as (hosted, otlp):
        await asyncio.to_thread(send_all_signals, f"http://{otlp.addresses[0]}", compression)
        found = {(event["signal"], event.get("name", "")): event for event in events(hosted)}
    log, outer, inner = found["log", ""], found["span", "outer"], found["span", "inner"]
    assert (log["body"], log["severityNumber"], log["attributes"]) == ("it broke", 17, {"a": 1})
    assert (log["timeUnixNano"], log["scope"]) == ("7000000", {"name": "lib", "version": "1"})
    assert {event["resource"]["attributes"]["service.name"] for event in found.values()} == {"shop"}
    assert inner["parentSpanId"] == outer["spanId"]
    assert inner["traceId"] == outer["traceId"]
    point = found["metric", "orders"]
    assert (point["kind"], point["asInt"], point["attributes"], point["isMonotonic"]) == (
        "sum",
        "3",
        {"shop": "a"},
        True,
    )


async def test_json_is_received_and_answered_in_json(tmp_path: Path) -> None:
    trace = "5b8efff798038103d269b633813fc60c"
    record = {"timeUnixNano": "1", "traceId": trace, "body": {"stringValue": "x"}}
    request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    async with receiving(tmp_path) as (hosted, otlp), httpx.AsyncClient() as client:
        answer = await client.post(url(otlp), json=request)
        assert (answer.status_code, answer.json()) == (200, {})
        assert answer.headers["content-type"] == "application/json"
        assert events(hosted)[0]["traceId"] == trace


async def test_over_grpc_all_signals_are_received(tmp_path: Path) -> None:
    async with receiving(tmp_path, grpc_port=True) as (hosted, otlp):
        async with grpc.aio.insecure_channel(otlp.grpc_address, compression=grpc.Compression.Gzip) as channel:
            for signal in SIGNALS:
                call = channel.unary_unary(
                    f"/{signal.service}/Export", response_deserializer=signal.response.FromString
                )
                reply = await call(log_request("one", "two") if signal is LOGS else b"")
                assert reply == signal.response()
        assert [event["body"] for event in events(hosted)] == ["one", "two"]
        assert {event.stream_id for event in hosted.events()} == {hosted.events()[0].stream_id}
        assert hosted.events()[0].metadata["peer"].startswith("127.0.0.1:")


async def test_a_request_is_answered_when_its_events_are_acknowledged(tmp_path: Path) -> None:
    async with receiving(tmp_path, grpc_port=True) as (hosted, otlp), httpx.AsyncClient() as client:
        hosted.hold()
        async with grpc.aio.insecure_channel(otlp.grpc_address) as channel:
            over_http = asyncio.create_task(client.post(url(otlp), content=log_request("a"), headers=PROTOBUF))
            over_grpc = asyncio.ensure_future(channel.unary_unary(f"/{LOGS.service}/Export")(log_request("b")))
            await eventually(lambda: len(hosted.values()) == 2)
            await asyncio.sleep(0.05)
            assert not over_http.done()
            assert not over_grpc.done()
            hosted.complete()
            assert (await over_http).status_code == 200
            await over_grpc


async def test_with_ack_durable_it_is_answered_when_they_are_on_disk(tmp_path: Path) -> None:
    async with receiving(tmp_path, ack="durable") as (hosted, otlp), httpx.AsyncClient() as client:
        hosted.hold()
        assert (await client.post(url(otlp), content=log_request("a"), headers=PROTOBUF)).status_code == 200


async def test_at_the_quota_clients_learn_when_to_retry_and_nothing_is_stored(tmp_path: Path) -> None:
    rpc = pytest.importorskip("google.rpc.status_pb2")
    details = pytest.importorskip("google.rpc.error_details_pb2")
    options = {"quota_bytes": 2000, "admission": "50ms", "retry_after_seconds": 7, "ack": "durable"}
    async with receiving(tmp_path, grpc_port=True, **options) as (hosted, otlp), httpx.AsyncClient() as client:
        hosted.hold()
        answers = [await client.post(url(otlp), content=log_request("x" * 1000), headers=PROTOBUF) for _ in range(5)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert answers[-1].headers["retry-after"] == "7"
        assert rpc.Status.FromString(answers[-1].content).message == "temporarily not accepting requests"
        stored = len(hosted.values())
        async with grpc.aio.insecure_channel(otlp.grpc_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/{LOGS.service}/Export")(log_request("y"))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        trailing = dict(raised.value.trailing_metadata() or ())
        retry = details.RetryInfo()
        assert rpc.Status.FromString(trailing["grpc-status-details-bin"]).details[0].Unpack(retry)
        assert retry.retry_delay.seconds == 7
        assert len(hosted.values()) == stored == [answer.status_code for answer in answers].count(200)


async def test_rejected_records_are_reported_as_partial_success(tmp_path: Path) -> None:
    async with receiving(tmp_path, event_bytes_max=500) as (hosted, otlp), httpx.AsyncClient() as client:
        answer = await client.post(url(otlp), content=log_request("a", "b" * 1000, "c"), headers=PROTOBUF)
        assert answer.status_code == 200
        assert LOGS.response.FromString(answer.content).partial_success.rejected_log_records == 1
        assert [event["body"] for event in events(hosted)] == ["a", "c"]
        assert hosted.host.counts["rejected_records"] == 1


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", "logs", PROTOBUF, b"\xff\xff", 400),
        ("POST", "logs", {"content-type": "application/json"}, b"{", 400),
        ("POST", "logs", {**PROTOBUF, "content-encoding": "gzip"}, b"not gzip", 400),
        ("POST", "logs", {**PROTOBUF, "content-encoding": "gzip"}, gzip.compress(b"x" * 20_000, mtime=0), 413),
        ("POST", "logs", PROTOBUF, b"x" * 20_000, 413),
        ("POST", "logs", {"content-type": "text/plain"}, b"", 415),
        ("POST", "logs", {**PROTOBUF, "content-encoding": "br"}, b"", 415),
        ("POST", "profiles", PROTOBUF, b"", 404),
        ("GET", "logs", PROTOBUF, b"", 405),
    ],
)
async def test_what_is_not_a_request_is_refused_with_a_status(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    async with receiving(tmp_path, body_bytes_max=10_000) as (hosted, otlp), httpx.AsyncClient() as client:
        answer = await client.request(method, url(otlp, path), headers=headers, content=body)
        assert answer.status_code == status
        assert len(answer.content) > 5
        assert hosted.values() == []
        assert (await client.post(url(otlp), content=log_request("fine"), headers=PROTOBUF)).status_code == 200


@pytest.mark.parametrize(("body", "code"), [(b"\xff", "INVALID_ARGUMENT"), (b"x" * 20_000, "RESOURCE_EXHAUSTED")])
async def test_over_grpc_what_is_not_a_request_is_refused(tmp_path: Path, body: bytes, code: str) -> None:
    async with receiving(tmp_path, grpc_port=True, body_bytes_max=10_000) as (hosted, otlp):
        async with grpc.aio.insecure_channel(otlp.grpc_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/{LOGS.service}/Export")(body)
        assert raised.value.code().name == code
        assert hosted.values() == []


async def test_both_ports_need_the_token_and_encrypt(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    options: dict[str, Any] = {"tls": {"cert": str(tmp_path / "server.pem")}, "auth": {"bearer": ["t0ken"]}}
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    async with (
        receiving(tmp_path / "data", grpc_port=True, **options) as (hosted, otlp),
        httpx.AsyncClient(verify=context) as client,
        grpc.aio.secure_channel(otlp.grpc_address, credentials) as channel,
    ):
        call = channel.unary_unary(f"/{LOGS.service}/Export")
        for token, is_right in (("t0ken", True), ("wrong", False)):
            headers = {"authorization": f"Bearer {token}"}
            answer = await client.post(url(otlp), content=log_request("a"), headers=PROTOBUF | headers)
            assert answer.status_code == (200 if is_right else 401)
            if is_right:
                await call(log_request("b"), metadata=[*headers.items()])
            else:
                with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                    await call(log_request("b"), metadata=[*headers.items()])
        assert [event["body"] for event in events(hosted)] == ["a", "b"]


async def test_a_large_request_is_converted_beside_the_event_loop(tmp_path: Path) -> None:
    bodies = [f"{number} " + "x" * 100 for number in range(5000)]
    async with receiving(tmp_path) as (hosted, otlp), httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(url(otlp), content=log_request(*bodies), headers=PROTOBUF)
        assert answer.status_code == 200
        assert [event["body"] for event in events(hosted)] == bodies


async def test_the_stream_of_a_grpc_client_ends_when_it_is_idle(tmp_path: Path) -> None:
    async with (
        receiving(tmp_path, grpc_port=True, idle="200ms") as (hosted, otlp),
        grpc.aio.insecure_channel(otlp.grpc_address) as channel,
    ):
        call = channel.unary_unary(f"/{LOGS.service}/Export")
        await call(log_request("a"))
        await eventually(lambda: hosted.host.counters.streams == 1 and not hosted.host.streams)
        await call(log_request("b"))
        assert [event["body"] for event in events(hosted)] == ["a", "b"]


async def test_a_drain_ends_all_streams_and_refuses_what_comes_later(tmp_path: Path) -> None:
    async with receiving(tmp_path, grpc_port=True) as (hosted, otlp), httpx.AsyncClient() as client:
        async with grpc.aio.insecure_channel(otlp.grpc_address) as channel:
            call = channel.unary_unary(f"/{LOGS.service}/Export")
            await call(log_request("a"))
            await client.post(url(otlp), content=log_request("b"), headers=PROTOBUF)
            async with asyncio.timeout(SECONDS_MAX):
                await hosted.host.drain()
            assert not hosted.host.streams
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await call(log_request("c"))
        with pytest.raises(httpx.TransportError):
            await client.post(url(otlp), content=log_request("c"), headers=PROTOBUF)
        assert [event["body"] for event in events(hosted)] == ["a", "b"]
