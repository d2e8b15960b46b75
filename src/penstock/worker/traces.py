"""Whether the worker exports traces of its epochs, by its environment, and what their ids are derived from."""

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from penstock.coordinator.spans import Span
from penstock.core.durable_files import write_private
from penstock.protocol.api.status import TraceStatus

log = logging.getLogger(__name__)

EXTRA = "pip install 'penstock-streams[otel]'"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class TraceExporter(Protocol):
    def export(self, span: Span) -> None:
        """Queue it. Returns at once."""
        ...

    def status(self) -> TraceStatus: ...

    async def stop(self) -> None:
        """Sends what is queued, for a short while."""
        ...


def trace_exporter(environment: Mapping[str, str]) -> TraceExporter | None:
    """None unless the standard variables of OpenTelemetry ask for traces. A worker does not fail because of them: they
    may be meant for other programs. Whatever keeps it from exporting is logged.
    """
    if not _is_wanted(environment):
        return None
    problem = _problem(environment)
    if not problem:
        try:
            from penstock.worker.otlp import OtlpExporter  # here: a worker without traces needs no OpenTelemetry

            return OtlpExporter()
        except ImportError as error:
            problem = f"{error.name or error} is not installed. {EXTRA}"
    log.warning("no traces are exported: %s", problem)
    return None


def _is_wanted(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = _exporter(environment)
    return exporter != "none" and bool(exporter or any(environment.get(name) for name in _ENDPOINTS))


def _exporter(environment: Mapping[str, str]) -> str:
    return environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()


def _problem(environment: Mapping[str, str]) -> str:
    """Why traces cannot be exported as configured; empty if they can."""
    if _exporter(environment) not in ("", "otlp"):
        return f"OTEL_TRACES_EXPORTER is {_exporter(environment)!r}; only otlp and none are supported"
    common = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", common)
    if protocol not in ("", "http/protobuf"):
        return f"the OTLP protocol is {protocol!r}; only http/protobuf is supported"
    return ""


def trace_seed(data: Path) -> bytes:
    """Random bytes of a data directory: traces of its epochs have the same ids after a restart, and share none with
    those of other workers.
    """
    file = data / "trace_seed"
    try:
        return file.read_bytes()
    except OSError:
        seed = secrets.token_hex(16).encode()
    try:
        write_private(file, seed)
    except OSError as error:  # the disk may be full
        log.warning("after a restart, unfinished epochs will get other trace ids: %s", error)
    return seed
