"""An OTLP/HTTP collector on a free loopback port: it decodes what a real exporter sends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Received:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace id and span id."""
    error: str
    service: str


@dataclass
class Collector:
    spans: list[Received] = field(default_factory=list)
    accepts: threading.Event = field(default_factory=threading.Event)
    """While it is not set, requests get no answer."""
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str, **attributes: object) -> list[Received]:
        wanted = {f"penstock.{key}": value for key, value in attributes.items()}
        return [one for one in self.spans if one.name == name and wanted.items() <= one.attributes.items()]

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource_spans in request.resource_spans:
            described = {one.key: _value(one.value) for one in resource_spans.resource.attributes}
            for scope in resource_spans.scope_spans:
                self.spans += [_received(span, described["service.name"]) for span in scope.spans]


def _received(span: Span, service: str) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {one.key: _value(one.value) for one in span.attributes},
        [(one.trace_id.hex(), one.span_id.hex()) for one in span.links],
        span.status.message,
        service,
    )


def _value(value: AnyValue) -> Any:
    kind = str(value.WhichOneof("value"))
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.accepts.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            collector.accepts.wait()
            collector.take(request)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_address[1]
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield collector
    finally:
        collector.accepts.set()
        server.shutdown()
        serving.join()
        server.server_close()
