"""The options of `otlp`."""

from typing import Annotated, Literal

from pydantic import Field

from penstock.connectors.http_server.options import IntakeOptions
from penstock.connectors.sockets import Port
from penstock.connectors.values import Size


class OtlpOptions(IntakeOptions):
    """A log record, a span and a data point of a metric are one event each: a JSON object with `signal` (`log`, `span`
    or `metric`), `resource`, `scope` and the fields of the record, as in OTLP's JSON: names in camelCase, 64-bit
    numbers as texts, `traceId` and `spanId` in hexadecimal. A data point also has `name`, `description`, `unit` and
    `kind` of its metric.

    The time of an event is the record's: `timeUnixNano` (a log record's `observedTimeUnixNano` if it has none), and
    `endTimeUnixNano` of a span. A record without one gets the time of its arrival.

    Requests come to `/v1/logs`, `/v1/metrics` and `/v1/traces` as protobuf or JSON, with or without gzip, and over
    gRPC. A request is answered when its events are acknowledged, according to the connector's `ack`. Records that
    cannot be stored are counted in its `partialSuccess`. At the quota, and while streams are paused, a request gets
    429, or UNAVAILABLE over gRPC, with the time after which to retry; while pipelines are starting, 503 or UNAVAILABLE.
    Nothing of such a request is stored. A connection is a stream.
    """

    port: Port = 4318
    """The port for OTLP/HTTP. 0 is any free port; the log names it."""
    grpc_port: Port | None = 4317
    """The port for OTLP/gRPC. `null` turns gRPC off."""
    attributes: Literal["plain", "otlp"] = "plain"
    """How attributes and the bodies of logs are written. `plain`: as JSON values, `{"http.method": "GET"}`. `otlp`: as
    OTLP's JSON, `[{"key": "http.method", "value": {"stringValue": "GET"}}]`."""
    body_bytes_max: Annotated[Size, Field(le=64 << 20)] = 4 << 20
    """The largest request, also after decompression. A larger one gets 413, or RESOURCE_EXHAUSTED over gRPC."""
    event_bytes_max: Annotated[Size, Field(le=8 << 20)] = 1 << 20
    """The largest event: a record that becomes larger, with its resource and its scope, is rejected."""
    stored_bytes_max: Annotated[Size, Field(le=1 << 30)] = 64 << 20
    """The largest total size of the events of one request. Each event repeats the resource and the scope, so many
    records with a large resource take many times the size of the request. A request beyond this gets 413, or
    RESOURCE_EXHAUSTED over gRPC."""
