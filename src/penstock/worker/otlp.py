"""Exports spans with OpenTelemetry, over OTLP/HTTP. The only module that imports it.

The event loop only queues spans; a thread of the SDK sends them. An unavailable collector costs only the spans: the
queue is bounded, and what does not fit is dropped and counted.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Status, StatusCode, TraceFlags

import penstock
from penstock.coordinator.spans import Span, SpanContext
from penstock.core.logs import one_line
from penstock.protocol.api.status import TraceStatus

log = logging.getLogger(__name__)

QUEUE_MAX = 8192
"""Spans that wait for the collector: those of about a thousand epochs, some 10 MiB."""

STOP_SECONDS = 3.0
"""A stop waits this long for the collector to accept what is queued."""

_SDK_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class OtlpExporter:
    """Takes its settings from the environment: endpoint, headers, TLS, timeout, service name, sampler, how often it
    sends. Used by one thread.
    """

    def __init__(self) -> None:
        self._counting = _CountingExporter(OTLPSpanExporter())
        self._processor = BatchSpanProcessor(self._counting, max_queue_size=QUEUE_MAX)
        self._ids = _GivenIds()
        self._provider = TracerProvider(resource=_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("penstock", penstock.__version__)
        self._queued = 0
        """Spans passed to the processor."""
        self._dropped = 0

    def export(self, span: Span) -> None:
        if self._waiting >= QUEUE_MAX:
            self._drop()
            return
        self._ids.given = span.context
        started = self._tracer.start_span(
            span.name,
            context=self._below(span.parent),
            attributes=dict(span.attributes),
            links=[Link(_context(one)) for one in span.links],
            start_time=span.start_ns,
        )
        if not started.is_recording():  # the sampler has dropped it
            return
        if span.error:
            started.set_status(Status(StatusCode.ERROR, one_line(span.error)))  # without secrets, as in the log
        self._queued += 1
        started.end(span.end_ns)

    def _below(self, parent: SpanContext | None) -> Context:
        """The parent's context. Samplers decide by the trace's id, so they decide the same for all of its spans."""
        if parent is None:
            return Context()
        decision = self._provider.sampler.should_sample(None, parent.trace_id, "epoch").decision
        above = NonRecordingSpan(_context(parent, is_sampled=decision is Decision.RECORD_AND_SAMPLE))
        return trace.set_span_in_context(above, Context())

    @property
    def _waiting(self) -> int:
        return self._queued - self._counting.exported - self._counting.failed

    def _drop(self) -> None:
        if not self._dropped:
            log.warning("spans are dropped: %d of them wait for the collector", QUEUE_MAX)
        self._dropped += 1

    def status(self) -> TraceStatus:
        return TraceStatus(
            spans_exported=self._counting.exported,
            spans_dropped=self._dropped + self._counting.failed,
            spans_queued=self._waiting,
        )

    async def stop(self) -> None:
        """Sends what is queued, for STOP_SECONDS. The rest is lost."""
        sending = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, STOP_SECONDS)
        self._counting.close()


def _resource() -> Resource:
    """As the environment describes it; the name of the service has a default."""
    resource = Resource.create()
    if not str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource
    return resource.merge(Resource({SERVICE_NAME: "penstock"}))


def _context(span: SpanContext, *, is_sampled: bool = True) -> trace.SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    return trace.SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=flags)


class _GivenIds(IdGenerator):
    """Spans get the ids that were derived from their epoch."""

    given = SpanContext(1, 1)

    def generate_span_id(self) -> int:
        return self.given.span_id

    def generate_trace_id(self) -> int:
        return self.given.trace_id


class _CountingExporter(SpanExporter):
    """Runs in the SDK's thread. Of consecutive failures, only the first is logged by the SDK."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = 0
        self.failed = 0
        self._exporter = exporter
        self._is_failing = False
        logging.getLogger(_SDK_LOG).addFilter(self._is_news)

    def _is_news(self, _: logging.LogRecord) -> bool:
        return not self._is_failing

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._count(len(spans), succeeded=result is SpanExportResult.SUCCESS)
        return result

    def _count(self, spans: int, *, succeeded: bool) -> None:
        self.exported += spans if succeeded else 0
        self.failed += 0 if succeeded else spans
        if self._is_failing and succeeded:
            log.warning("the collector accepts spans again")
        elif not succeeded and not self._is_failing:
            log.warning("the collector does not accept spans: they are dropped until it does")
        self._is_failing = not succeeded

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def close(self) -> None:
        """The worker ends. If the process continues, the SDK may log again."""
        logging.getLogger(_SDK_LOG).removeFilter(self._is_news)
