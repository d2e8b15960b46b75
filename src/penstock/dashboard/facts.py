"""Facts about a worker and its parts, for people: pairs of a name and a value. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime

from penstock.core.counts import show_count
from penstock.core.durations import show_seconds
from penstock.core.sizes import show_size
from penstock.dashboard.catch_up import catch_up_text
from penstock.dashboard.flow_picture import show_rate
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import ConnectorStatus, WorkerStatus
from penstock.protocol.stored.event import END_OF_TIME


def clock(time_us: int | None) -> str:
    """A time in microseconds since 1970, for people; empty if there is none."""
    if time_us is None:
        return ""
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"


def machine_facts(status: WorkerStatus) -> list[tuple[str, object]]:
    application = status.application
    named = application.name or ("none" if not application.revision else "deployed") if application else "none"
    state = f" ({application.state})" if application is not None and application.revision else ""
    found: list[tuple[str, object]] = [
        ("Application", f"{named}{state}"),
        ("Worker", f"{status.version}, up {show_seconds(status.uptime_seconds)}"),
        ("Stored", f"{show_size(status.store.live_bytes)} in {status.store.segments:,} segments"),
        ("Free disk", show_size(status.store.disk_free_bytes)),
        ("Streams", f"{status.source_totals.active_streams:,} active"),
    ]
    if status.store.bucket is not None:
        bucket = status.store.bucket
        found.append(
            (
                "Bucket",
                f"{bucket.url}, {bucket.objects:,} objects of the journal, {bucket.requests_per_second:.1f} requests/s",
            )
        )
    return found


def source_facts(status: WorkerStatus, name: str, newest: int | None) -> Iterable[tuple[str, object]]:
    """`newest`: the highest event time that pipelines have read, in microseconds."""
    found, rate = status.sources.get(name), status.rates.sources.get(name)
    connector = next((one for one in status.connectors if one.name == name), None)
    if connector is not None:
        yield "Connector", _connector_state(connector)
        if connector.reached_at:
            yield "Reached at", connector.reached_at
        yield "Dead letters", f"{connector.dead_letters:,}"
    if rate is not None:
        yield "Now", f"{show_rate(rate.events_per_second)} events/s, {show_size(int(rate.bytes_per_second))}/s"
    if found is None:
        return
    yield "Stored", f"{show_count(found.messages, 'event')} since the start; {show_size(found.retained_bytes)} retained"
    yield "Streams", f"{found.streams:,}, {found.idle_streams:,} of them idle"
    yield "Programs", f"{found.sessions:,} connected, which may send {show_count(found.credits, 'message')} (credits)"
    yield "Waiting", f"{show_size(found.waiting_bytes)} durable and not acknowledged yet (ack: {found.ack})"
    yield "Last arrival", clock(found.last_event_us) or "none"
    for pipeline in status.pipelines:
        if any(name in names for names in pipeline.inputs.values()) and pipeline.watermark is not None:
            lag = "" if newest is None else f", {_behind(newest - pipeline.watermark)}"
            yield f"Watermark of {pipeline.name}", clock(pipeline.watermark) + lag
            if (blocker := pipeline.watermark_blocked_by) is not None:
                yield "Waits for", blocker.text()


def _connector_state(one: ConnectorStatus) -> str:
    return f"{one.type}, {one.state}" + (f": {one.reason}" if one.reason else "")


def _behind(lag_us: int) -> str:
    return f"{lag_us / 1e6:,.1f} s behind the newest event" if lag_us > 0 else "at the newest event"


def pipeline_facts(one: PipelineStatus, status: WorkerStatus) -> Iterable[tuple[str, object]]:
    rates = status.rates.pipelines.get(one.name)
    yield "State", one.state.lower() + (f": {one.failure.text}" if one.failure is not None else "")
    yield "Reads", ", ".join(source for names in one.inputs.values() for source in names) or "nothing yet"
    yield "Epochs", f"cut {_upto(one.planned)}, merged {_upto(one.merged)}, complete {_upto(one.complete)}"
    if rates is not None:
        yield (
            "Now",
            f"{show_rate(rates.rows_in_per_second)} rows/s in, {show_rate(rates.rows_out_per_second)} rows/s out",
        )
    if rates is not None and rates.latency_seconds is not None:
        yield "Latency", f"{rates.latency_seconds:.3g} s from arrival to completion (last epoch)"
    until = f" ({catching_up})" if (catching_up := catch_up_text(one, status.rates)) else ""
    yield "Behind", f"{show_size(one.lag_bytes)} to read{until}, {show_size(one.undelivered_bytes)} to deliver"
    if one.watermark is not None:
        yield "Watermark", f"{clock(one.watermark)}, {_ago(one.watermark)}"
    if (blocker := one.watermark_blocked_by) is not None:
        yield "Watermark waits for", blocker.text()
    if (text := one.open_windows_text()) is not None:
        yield "Windows", text
    if one.running_epoch is not None:
        yield "Spark", f"has been processing epoch {one.running_epoch} for {one.running_seconds or 0:.1f} s"


def _ago(time_us: int) -> str:
    if time_us >= END_OF_TIME:
        return "the end: all sources have ended"
    seconds = datetime.now(UTC).timestamp() - time_us / 1e6
    return f"{seconds:,.0f} s behind the clock" if seconds >= 0 else f"{-seconds:,.0f} s ahead of the clock"


def _upto(epoch: int) -> str:
    """Epochs are numbered from 0, and -1 is before the first."""
    return "none yet" if epoch < 0 else f"up to {epoch:,}"


def sink_facts(one: SinkStatus, status: WorkerStatus) -> Iterable[tuple[str, object]]:
    votes = "votes in two-phase commit" if one.votes else "receives epochs after the decision"
    yield "State", one.state.lower() + (f": {one.reason}" if one.reason else "")
    connector = next((each for each in status.connectors if each.name == one.url), None)
    if connector is None:
        yield "Writes to", one.url
    else:
        yield "Connector", _connector_state(connector)
        if connector.breaker:
            tripped = f", {show_count(connector.tripped_count, 'stream')} tripped" if connector.tripped_count else ""
            yield "Breaker", connector.breaker + tripped
        yield "Outbox", f"{show_size(connector.outbox_bytes)}, retained for tripped streams"
        yield "Dead letters", f"{connector.dead_letters:,}"
    yield "Guarantee", f"{one.guarantee}; {votes}"
    yield "Port", f"{one.port} of {one.pipeline}"
    yield "Delivered", show_size(one.sent)
    yield "Lacks", f"{show_count(one.lacking, 'epoch')}; {one.parked:,} parked"
    if one.silent_seconds is not None:
        yield "Silent", f"it has not answered for {one.silent_seconds:.0f} s"
