"""Writes the parts of docs/http-api.md and docs/metrics.md that are generated from the code.

    python script/references.py

Each page begins with text that people write. What follows the marker is replaced.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from prometheus_client.core import Metric

from penstock.core.sizes import MIB
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.status import TraceStatus
from penstock.segment_server.settings import ServerSettings
from penstock.store.settings import StoreSettings
from penstock.testing.running_worker import RunningWorker
from penstock.worker import metrics as worker_metrics
from penstock.worker.api_route import ApiRoute
from penstock.worker.openapi import described_routes, reply_of
from penstock.worker.settings import WorkerSettings

DOCS = Path(__file__).parents[1] / "docs"

MARKER = "<!-- What follows is generated: python script/references.py -->\n"


def pages() -> dict[str, str]:
    """The pages as they should be, by name."""
    generated = {"http-api.md": http_api(), "metrics.md": metrics()}
    return {name: _with(DOCS / name, text) for name, text in generated.items()}


def _with(page: Path, lines: Iterator[str]) -> str:
    written, marker, _ = page.read_text(encoding="utf-8").partition(MARKER)
    assert marker, f"{page.name} has no marker"
    return written + marker + "".join(f"{line}\n" for line in lines)


# The HTTP API.


def http_api() -> Iterator[str]:
    for subject, routes in groupby(described_routes(), lambda route: route.contract.subject):
        yield from ("", f"## {subject.value}", "")
        if subject.text:
            yield from (subject.text, "")
        yield from _table(["request", "role", "takes", "what it does", "replies"], map(_row, routes))


def _row(route: ApiRoute) -> list[str]:
    text = " ".join(route.contract.description.split())
    return [f"`{route.method} {route.path}`", _role(route), "; ".join(_takes(route)), text, _reply(route)]


def _role(route: ApiRoute) -> str:
    return route.needs.replace("{name}", "`{name}`")


def _takes(route: ApiRoute) -> Iterator[str]:
    """The fields of the body, in brackets if they may be left out; then what may follow the path."""
    body = route.contract.body
    fields = () if body is None else msgspec.structs.fields(body)
    if fields:
        yield ", ".join(f"`{one.encode_name}`" if one.required else f"[`{one.encode_name}`]" for one in fields)
    for query in route.contract.query:
        yield f"`?{query.name}=`: {query.text}"


def _reply(route: ApiRoute) -> str:
    kind = reply_of(route)
    if kind is str:
        return "text"
    return f"`{kind.__name__}`" if isinstance(kind, type) and kind is not dict else "an object"


# Metrics.


def metrics() -> Iterator[str]:
    by_part: dict[str, list[Metric]] = {}
    for family in families():
        by_part.setdefault(family.name.split("_")[1], []).append(family)
    for part, of_part in by_part.items():
        yield from ("", f"## `penstock_{part}`", "")
        yield from _table(["metric", "type", "labels", "meaning"], ([*_metric(one)] for one in of_part))


def families() -> list[Metric]:
    """Those of a real worker, and those that only a worker with traces has."""
    with TemporaryDirectory() as data:
        worker = RunningWorker(
            WorkerSettings(
                data=Path(data) / "data",
                http_port=0,
                store=StoreSettings(chapter_bytes=MIB, reserve_bytes=2 * MIB),
                segment=ServerSettings(port=0),
                programs=ProgramServerSettings(port=0),
            )
        )
        worker.start()
        try:
            found = worker.call(_collected(worker))
        finally:
            worker.stop()
    status = TraceStatus(spans_exported=0, spans_dropped=0, spans_queued=0)
    by_name = {family.name: family for family in (*found, *worker_metrics.traces(lambda: status).collect())}
    return [*by_name.values()]


async def _collected(worker: RunningWorker) -> list[Metric]:
    return [family for family in worker.worker.registry.collect() if family.name.startswith("penstock_")]


def _metric(family: Metric) -> Iterator[str]:
    suffix = "_total" if family.type == "counter" else ""
    yield f"`{family.name}{suffix}`"
    yield family.type
    yield ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
    yield family.documentation


# Markdown.


def _table(head: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")


if __name__ == "__main__":
    main()
