"""What blocks progress: of all links of the chain from sources to sinks, those that the others wait for.

    program → source → cut → Spark → merge → sinks

One pure function finds them, for /status, `penstock status` and `penstock run`. It goes by progress, not by
signs of life: a link blocks if it was asked for something and has not done it, whatever its heartbeats say, and a link
that has done its part is never blamed, however long the others take.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.sizes import show_size
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus, QueryReport
from penstock.protocol.api.status import ApplicationStatus, Blockage, BlockageKind, ConnectorStatus, SourceStatus

WAITED_SECONDS = 10.0
"""A link that has not done what it was asked for is named after so long: most epochs take less, and somebody who looks
at a stalled system sees within 15 s which link it is.
"""

_OUTLIVED_SECONDS = 5.0
"""A query that was heard so long after its driver's last heartbeat runs on without it. With less between them they may
have stopped together.
"""

_BETWEEN_TRIGGERS = "Waiting for next trigger"
"""What Spark reports about a query with a trigger interval while it has nothing to do."""


@dataclass(frozen=True, slots=True)
class FullSource:
    """A source at its quota, or at that of its principal."""

    stored_bytes: int
    slowest: Sequence[str]
    """The pipelines that the bytes are retained for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about the progress of every link, at one moment."""

    pipelines: Sequence[PipelineStatus] = ()
    sinks: Sequence[SinkStatus] = ()
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    full_sources: Mapping[str, FullSource] = field(default_factory=dict)
    connectors: Sequence[ConnectorStatus] = ()
    application: ApplicationStatus | None = None
    paused: Collection[str] = ()
    """Connectors and sources that an operator has paused."""
    former: Collection[str] = ()
    """Pipelines that are no longer in the application, and still registered."""
    is_disk_full: bool = False
    slow_disk: str = ""
    """What waits for a disk, or an object store, that is too slow; "" if it is fast enough."""
    is_on_bucket: bool = False
    """Whether the object store is what is slow."""
    bucket_problem: str = ""
    """Why the object store accepts nothing."""


def blockages(facts: Facts) -> list[Blockage]:
    """Causes before their consequences; then what the pipelines that are not blocked wait for."""
    found = [*_disk(facts), *_operator(facts)]
    for one in facts.pipelines:
        found += _sinks(facts, one) or _output(one)
        found += _left_behind(one) if one.name in facts.former else _query(one)
    found += [*_connectors(facts), *_full_sources(facts)]
    blocked = {one.pipeline for one in found}
    for one in facts.pipelines:
        if one.name not in blocked:
            found += [*_windows(one)] or [*_idle(facts, one)]
    return [one for one in found if one.is_blocking] + [one for one in found if not one.is_blocking]


# The disk, and what an operator has stopped.


def _disk(facts: Facts) -> Iterator[Blockage]:
    if facts.is_disk_full:
        text = "blocked by the disk: it is full, so sources get no credits, and nothing can be staged"
        yield Blockage(kind="disk", link="the disk", text=text, hint="Free space; everything continues automatically.")
    if facts.bucket_problem:
        yield Blockage(
            kind="disk", link="the object store", text=f"blocked by the object store: {facts.bucket_problem}"
        )
    elif facts.slow_disk:
        link, faster = ("the object store", "a faster store") if facts.is_on_bucket else ("the disk", "a faster disk")
        text = f"blocked by {link}: it is slow, {facts.slow_disk}, so sources get fewer credits"
        yield Blockage(kind="disk", link=link, text=text, hint=f"Use {faster}, or raise --in-flight.")


def _operator(facts: Facts) -> Iterator[Blockage]:
    application = facts.application
    if application is not None and application.revision and application.state in ("draining", "drained"):
        text = f"the application is {application.state}: its sources are blocked"
        yield Blockage(
            kind="application", link="the application", text=text, hint="Start it with penstock apply or run."
        )
    for name in facts.paused:
        text = f"source {name} is blocked: an operator has paused it"
        yield Blockage(kind="application", link=f"source {name}", text=text, hint=f"Resume it: penstock resume {name}")


# Sinks: those that have been asked and have not answered, and those that cannot or will not accept their epoch.


def _sinks(facts: Facts, pipeline: PipelineStatus) -> list[Blockage]:
    return [_sink(one) for one in facts.sinks if one.pipeline == pipeline.name and _is_waited_for(one)]


def _is_waited_for(one: SinkStatus) -> bool:
    """A sink that does not fit the ledger is refused before anything is asked of it."""
    return one.state == "DIVERGED" or bool(one.lacking and one.reason)


def _sink(one: SinkStatus) -> Blockage:
    if one.state == "DIVERGED":  # its reason has sink, pipeline, and what to do
        return Blockage(kind="sink", link=f"sink {one.sink}", text=one.reason, pipeline=one.pipeline)
    epochs = "1 epoch waits" if one.lacking == 1 else f"{one.lacking} epochs wait"
    votes_no = one.state == "REFUSED" and not one.reason.startswith("no answer")
    return Blockage(
        kind="sink",
        link=f"sink {one.sink}",
        text=f"pipeline {one.pipeline} is blocked by sink {one.sink} ({epochs}): "
        f"{'it votes no: ' if votes_no else ''}{one.reason}",
        hint=_park(one) if votes_no else "",
        pipeline=one.pipeline,
        seconds=one.silent_seconds,
    )


def _park(one: SinkStatus) -> str:
    return f"Correct the cause, or set the epoch aside: penstock epoch park {one.pipeline} EPOCH --sink {one.sink}"


def _output(one: PipelineStatus) -> list[Blockage]:
    """Its cut is blocked by output that is not consumed: by readers, or sinks that make progress, but too slowly."""
    if one.blocked is None:
        return []
    text = f"pipeline {one.name} is {one.blocked}"
    return [Blockage(kind="output", link=f"the output of {one.name}", text=text, pipeline=one.name)]


# Spark: the driver, its JVM, and the query.


def _query(one: PipelineStatus) -> Iterator[Blockage]:
    behind = f"{show_size(one.lag_bytes)} behind"
    match one.state:
        case "STOPPED":
            if one.lag_bytes:
                text = f"pipeline {one.name} is STOPPED: {behind}"
                yield _spark(one, "stopped", f"pipeline {one.name}", text, "Start it with penstock run.")
        case "STARTING":
            if one.lag_bytes:
                text = f"pipeline {one.name} waits for Spark to start: {behind}"
                yield _spark(one, "starting", "Spark", text)
        case _ if one.failure is not None:
            text = f"pipeline {one.name} is FAILING ({behind}): {one.failure}"
            yield _spark(one, "failing", f"pipeline {one.name}", text, one.failure.hint)
        case _:
            yield from _running(one, behind)


def _left_behind(one: PipelineStatus) -> Iterator[Blockage]:
    """Nothing starts it again, and the acknowledgements and the retention of its sources wait for it."""
    if one.state in ("STARTING", "RUNNING"):
        yield from _query(one)
    elif one.lag_bytes:
        sources = ", ".join(dict.fromkeys(source for names in one.inputs.values() for source in names))
        text = (
            f"pipeline {one.name} is no longer in the application, and blocks {show_size(one.lag_bytes)} of {sources}"
        )
        hint = f"Drop it (penstock pipeline drop {one.name}), or deploy it again."
        yield _spark(one, "former", f"pipeline {one.name}", text, hint)


def _running(one: PipelineStatus, behind: str) -> Iterator[Blockage]:
    """The first of them that makes no progress: the driver, the JVM, or the query. A query continues without its
    driver.
    """
    heard, driver, query = one.heartbeat_age_seconds, one.driver_silent_seconds, one.query
    if _is_long(driver) and _runs_on(heard, driver):
        silence = f"its driver has sent no heartbeat for {driver:.0f} s"
        text = f"pipeline {one.name}: {silence}; its query keeps running without it"
        hint = "Its process is stopped, or too busy: if the query fails, nothing restarts it."
        yield _spark(one, "unheard", "its driver", text, hint, driver)
    if heard is None or _is_long(heard):
        since = "" if heard is None else f" for {heard:.0f} s"
        text = f"pipeline {one.name} is blocked by its driver: no heartbeat{since} ({behind})"
        hint = "Its process is gone or stopped: see the output of penstock run, and start it again."
        yield _spark(one, "driver", "its driver", text, hint, heard)
    elif one.state == "FAILING":
        text = f"pipeline {one.name} is FAILING ({behind}): its Spark query failed"
        yield _spark(one, "failing", f"pipeline {one.name}", text, "The error is in the output of penstock run.")
    elif query is not None and _is_long(query.jvm_silent_seconds) and not _is_long(driver):
        silent = query.jvm_silent_seconds
        text = f"pipeline {one.name} is blocked by Spark's JVM: no answer for {silent:.0f} s ({behind})"
        hint = "Its process is stopped, swapping, or collecting garbage: see spark.log, and its memory."
        yield _spark(one, "spark", "Spark's JVM", text, hint, silent)
    elif one.running_epoch is not None:
        if _is_long(one.running_seconds):
            yield _long_epoch(one, query)
    elif one.lag_bytes and _is_long(one.asked_seconds) and (query is None or query.doing != _BETWEEN_TRIGGERS):
        doing = f": {query.doing}" if query is not None and query.doing else ""
        text = f"pipeline {one.name} is blocked by Spark: it has not asked for an epoch for {one.asked_seconds:.0f} s"
        yield _spark(one, "spark", "Spark", f"{text}{doing}", seconds=one.asked_seconds)


def _runs_on(heard: float | None, driver: float | None) -> bool:
    if heard is None or driver is None:
        return False
    return heard < WAITED_SECONDS and driver - heard >= _OUTLIVED_SECONDS


def _long_epoch(one: PipelineStatus, query: QueryReport | None) -> Blockage:
    """An epoch may run for long and still make progress: completed tasks are the best evidence of it."""
    text = f"pipeline {one.name}: epoch {one.running_epoch} has been running in Spark for {one.running_seconds:.0f} s"
    if query is not None and query.tasks:
        text += f" ({query.tasks_done} of {query.tasks} tasks are done"
        text += f", none has ended for {query.unmoved_seconds:.0f} s)" if _is_long(query.unmoved_seconds) else ")"
    hint = "If no task ends, a function of the pipeline hangs: look at its Python worker with py-spy dump."
    return _spark(one, "spark", f"epoch {one.running_epoch}", text, hint, one.running_seconds)


def _spark(
    one: PipelineStatus, kind: BlockageKind, link: str, text: str, hint: str = "", seconds: float | None = None
) -> Blockage:
    return Blockage(kind=kind, link=link, text=text, hint=hint, pipeline=one.name, seconds=seconds)


def _is_long(seconds: float | None) -> bool:
    return seconds is not None and seconds >= WAITED_SECONDS


# Connectors and sources.


def _connectors(facts: Facts) -> Iterator[Blockage]:
    for one in facts.connectors:
        link = f"connector {one.name}"
        if one.reason:
            yield Blockage(kind="connector", link=link, text=f"{link} is {one.state}: {one.reason}")
        if one.breaker_reason and one.breaker_reason not in one.reason:
            breaker = f"'s breaker is {one.breaker}" if one.breaker != "passing" else " accepts nothing"
            yield Blockage(kind="connector", link=link, text=f"{link}{breaker}: {one.breaker_reason}")
        if one.blocked_count:
            streams = "1 stream of it is" if one.blocked_count == 1 else f"{one.blocked_count:,} streams of it are"
            text = f"source {one.name}: {streams} blocked: {one.blocked_streams[0].why}"
            yield Blockage(kind="streams", link=f"source {one.name}", text=text)


def _full_sources(facts: Facts) -> Iterator[Blockage]:
    for name, full in facts.full_sources.items():
        by = f"blocked by {', '.join(full.slowest)}" if full.slowest else "read by no pipeline"
        text = f"source {name} is {by}: it is at its quota with {show_size(full.stored_bytes)}, and gets no credits"
        yield Blockage(kind="source", link=f"source {name}", text=text)


# What a pipeline waits for that has nothing to do.


def _windows(one: PipelineStatus) -> Iterator[Blockage]:
    if (text := one.open_windows_text()) is not None:
        seconds = one.watermark_unmoved_seconds
        yield Blockage(kind="windows", link="the watermark", text=text, pipeline=one.name, seconds=seconds)


def _idle(facts: Facts, one: PipelineStatus) -> Iterator[Blockage]:
    if one.state != "RUNNING" or one.running_epoch is not None:
        return
    connectors = {each.name: each for each in facts.connectors}
    for name in dict.fromkeys(name for names in one.inputs.values() for name in names):
        source = facts.sources.get(name)
        if source is None or source.has_finished or name in facts.paused or name in facts.full_sources:
            continue
        if (why := _silence(source, connectors.get(name))) is not None:
            text = f"pipeline {one.name} waits for source {name}: {why}"
            seconds = source.silent_seconds
            yield Blockage(kind="idle", link=f"source {name}", text=text, pipeline=one.name, seconds=seconds)


def _silence(source: SourceStatus, connector: ConnectorStatus | None) -> str | None:
    """Why there are no events; None if there are, or there were some a moment ago."""
    since = "" if source.silent_seconds is None else f" for {source.silent_seconds:.0f} s"
    if not source.sessions and connector is None:
        return "no program is connected"
    if not _is_long(source.silent_seconds):
        return None
    if connector is not None and not source.sessions:
        return f"{connector.type}, {connector.state}, has had no events{since}"
    may = f"may send {source.credits:,} messages" if source.credits else "has no credits"
    return f"its program is connected, {may}, and has sent nothing{since}"
