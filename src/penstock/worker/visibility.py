"""What a principal with prefixes sees of the worker: its own part, and no name of others.

An owner may connect tenants, by a pipeline under one tenant's prefix that reads another's source, or whose output
another tenant reads. The status of such a pipeline omits the others' names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace as replaced
from typing import TypeVar

from msgspec.structs import replace
from starlette.requests import Request

from penstock.access.principals import Principal, Role
from penstock.protocol.api.history import Principal as PrincipalReply
from penstock.protocol.api.history import WorkerHistory
from penstock.protocol.api.pipelines import BatchRanges, PipelineStatus, StartingPipeline
from penstock.protocol.api.status import (
    ConnectorStatus,
    LoopStatus,
    Part,
    SegmentServerStatus,
    SessionStatus,
    SessionTotals,
    SourceStatus,
    SourceTotals,
    StoreStatus,
    WorkerStatus,
)
from penstock.protocol.stored.names import Form, Source, access_name
from penstock.worker.routes import principal_of

T = TypeVar("T")

_OTHERS = "something that this principal may not read"


async def shown_principal(request: Request) -> PrincipalReply:
    """Show which principal the worker takes the client for."""
    found = principal_of(request)
    return PrincipalReply(name=found.name, role=found.role.value, prefixes=[one for one in found.prefixes if one])


def visible_history(history: WorkerHistory, principal: Principal) -> WorkerHistory:
    if principal.may(Role.READ):
        return history
    return replace(
        history,
        series={key: found for key, found in history.series.items() if principal.may(Role.READ, _name_in(key))},
        epochs={name: found for name, found in history.epochs.items() if principal.may(Role.READ, name)},
        not_kept=[key for key in history.not_kept if principal.may(Role.READ, _name_in(key))],
    )


def _name_in(key: str) -> str:
    """The source or pipeline of a series: names may contain slashes."""
    kind, _, rest = key.partition("/")
    return rest.rsplit("/", 2 if kind == "sink" else 1)[0]


def visible(status: WorkerStatus, principal: Principal) -> WorkerStatus:
    """What the principal may read of it: a limited one sees its own sources and pipelines with their totals, and
    nothing about others or the machine.
    """
    if principal.may(Role.READ):
        return status

    def own(names: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in names.items() if principal.may(Role.READ, name)}

    rates, sources = status.rates, own(status.sources)
    sessions = [one for one in status.sessions if one.source and principal.may(Role.READ, one.source)]
    return replace(
        status,
        pid=0,
        data="",
        uptime_seconds=0.0,
        problems=[],
        blockages=[],
        store=replace(_nothing(StoreStatus), disk_full=False, bucket=None),
        loop=_nothing(LoopStatus),
        segment_server=_nothing(SegmentServerStatus),
        sources=sources,
        source_totals=_source_totals(sources.values()),
        damaged_sources=own(status.damaged_sources),
        sessions=sessions,
        session_totals=_session_totals(sessions),
        session_errors=[],
        application=None,
        connectors=[_connector(one, principal) for one in status.connectors if principal.may(Role.READ, one.name)],
        pipelines=visible_pipelines(status.pipelines, principal),
        starting=[_starting(one, principal) for one in status.starting if principal.may(Role.READ, one.name)],
        sinks=[one for one in status.sinks if principal.may(Role.READ, one.pipeline)],
        windows=[one for one in status.windows if principal.may(Role.READ, one.pipeline)],
        rates=replace(rates, sources=own(rates.sources), pipelines=own(rates.pipelines), sinks=own(rates.sinks)),
        shards=[],
    )


P = TypeVar("P", bound=Part)


def _nothing(kind: type[P]) -> P:
    """A part of which all numbers are 0."""
    return kind(**dict.fromkeys(kind.__struct_fields__, 0))


def _source_totals(sources: Collection[SourceStatus]) -> SourceTotals:
    """What the sources themselves report."""
    return replace(
        _nothing(SourceTotals),
        count=len(sources),
        known_streams=sum(one.streams for one in sources),
        idle_streams=sum(one.idle_streams for one in sources),
        messages=sum(one.messages for one in sources),
        message_bytes=sum(one.message_bytes for one in sources),
        duplicates=sum(one.duplicates for one in sources),
        untimed=sum(one.untimed for one in sources),
    )


def _session_totals(sessions: Collection[SessionStatus]) -> SessionTotals:
    """What the sessions themselves report."""
    return replace(
        _nothing(SessionTotals),
        open=len(sessions),
        credits=sum(one.credits for one in sessions),
        in_flight_bytes=sum(one.in_flight_bytes for one in sessions),
        ack_lag_seconds=max((one.ack_lag_seconds for one in sessions), default=0.0),
    )


# Pipelines and connectors that an owner has connected with those of others.


def visible_pipelines(listed: Iterable[PipelineStatus], principal: Principal) -> list[PipelineStatus]:
    pipelines = {one.name: one for one in listed}
    own = [one for one in pipelines.values() if principal.may(Role.READ, one.name)]
    return own if principal.may(Role.READ) else [_pipeline(one, pipelines, principal) for one in own]


def _pipeline(one: PipelineStatus, pipelines: Mapping[str, PipelineStatus], principal: Principal) -> PipelineStatus:
    blocker = one.watermark_blocked_by
    shown = replaced(
        one,
        inputs={key: _own_sources(sources, principal) for key, sources in one.inputs.items()},
        watermark_blocked_by=blocker if blocker is None or _reads(blocker.source, principal) else None,
        open_windows_sources=_own_sources(one.open_windows_sources, principal),
    )
    if one.blocked is not None and not all(principal.may(Role.READ, name) for name in _readers(one, pipelines)):
        shown = replaced(shown, blocked=f"blocked by {_OTHERS}")
    if all(_reads(source, principal) for source in _upstream(one, pipelines)):
        return shown
    waits = one.open_windows_wait
    return replaced(
        shown,
        open_windows_wait=None if waits is None else f"waiting for {_OTHERS}",
        failure=None if one.failure is None else replaced(one.failure, text="its query has failed", hint=""),
    )


def _reads(source: str, principal: Principal) -> bool:
    return principal.may(Role.READ, Source.parse(source).access_name)


def _own_sources(sources: Iterable[str], principal: Principal) -> list[str]:
    return [source for source in sources if _reads(source, principal)]


def _upstream(one: PipelineStatus, pipelines: Mapping[str, PipelineStatus]) -> set[str]:
    """Its sources, those of the pipelines whose output it reads, and so on."""
    found = set[str]()
    ahead = {source for sources in one.inputs.values() for source in sources}
    while ahead:
        found |= ahead
        read = [Source.parse(source) for source in ahead]
        names = {source.name.partition("/")[0] for source in read if source.form is Form.OUTPUT}
        above = [pipelines[name] for name in names if name in pipelines]
        ahead = {source for each in above for sources in each.inputs.values() for source in sources} - found
    return found


def _readers(one: PipelineStatus, pipelines: Mapping[str, PipelineStatus]) -> list[str]:
    """The pipelines that read its output."""
    outputs = f"{Source(Form.OUTPUT, one.name)}/"
    return [
        name
        for name, other in pipelines.items()
        if any(source.startswith(outputs) for sources in other.inputs.values() for source in sources)
    ]


def visible_batch(batch: BatchRanges, principal: Principal) -> BatchRanges:
    def own(segment: str) -> bool:
        return principal.may(Role.READ, access_name(segment))

    inputs = {key: [one for one in ranges if own(one.segment)] for key, ranges in batch.inputs.items()}
    return replaced(batch, inputs=inputs)


def _starting(one: StartingPipeline, principal: Principal) -> StartingPipeline:
    return replaced(one, sources=_own_sources(one.sources, principal))


def _connector(one: ConnectorStatus, principal: Principal) -> ConnectorStatus:
    """What blocks a stream, or trips one, is further down: a pipeline or connector that may be another's."""
    tripped = [each for each in one.tripped_streams if principal.may(Role.READ, each.connector)]
    blocked = [replace(each, why=f"blocked by {_OTHERS}") for each in one.blocked_streams]
    return replace(one, tripped_streams=tripped, blocked_streams=blocked)
