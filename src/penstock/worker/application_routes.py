"""The routes of the application (what is deployed, its drain, operators' pauses), and of declarations about sources:
watermarks of their streams, and the end of a source.
"""

from contextlib import suppress
from typing import Any

from starlette.requests import Request

from penstock.access.principals import Role
from penstock.application.validation import check_deployment
from penstock.core.errors import RequestError
from penstock.core.logs import LogLevel, set_log_level
from penstock.ingest.declarations import AFTER_SECONDS_MAX
from penstock.protocol.api.codec import Done, Empty
from penstock.protocol.api.deployment import Answer, Apply, Deployed, Deployment, SelectStreams, SetLogLevel
from penstock.protocol.api.pipelines import DeclareWatermark, StreamCount
from penstock.protocol.stored.names import partition_of
from penstock.worker.api_route import ApiRoute, Subject, about
from penstock.worker.routes import Routed, get, post

_U64_MAX = 2**64 - 1


def routes(worker: Routed) -> list[ApiRoute]:
    application, sources = _Application(worker), _Sources(worker)
    return [
        *about(
            Subject.APPLICATION,
            get("/application", application.show, reply_type=Deployed),
            post("/application", Apply, application.apply, "PUT", is_audited=True),
            post("/drain", Empty, application.drain, is_audited=True),
            post("/pause", SelectStreams, application.pause, is_audited=True),
            post("/resume", SelectStreams, application.resume, is_audited=True),
        ),
        *about(
            Subject.DRIVERS,
            post("/application/follow", Empty, application.follow),
            post("/application/answer", Answer, application.answer),
            post("/application/leave", Empty, application.leave),
        ),
        *about(
            Subject.WORKER,
            post("/log-level", SetLogLevel, application.log_level, role=Role.ADMIN, is_audited=True),
        ),
        *about(
            Subject.SOURCES,
            post("/sources/{name}/watermark", DeclareWatermark, sources.watermark, role=Role.WRITE, is_audited=True),
            post("/sources/{name}/end", Empty, sources.end, role=Role.WRITE, is_audited=True),
        ),
    ]


class _Application:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def show(self, _: Request) -> Any:
        """Show what is deployed, with its revision and state. Secrets are masked."""
        return self._worker.application()

    async def follow(self, _: str, __: Empty) -> Deployed:
        """Report that the pipelines' driver lives and is to be asked before a change. Replies as GET /application."""
        shown: Deployed = self._worker.application()
        self._worker.runtime().driver.heard()
        return shown

    async def apply(self, _: str, body: Apply) -> dict[str, Any]:
        """Deploy an application. The reply has the new revision and what has changed. With an expected revision, it is
        refused with 409 if another one has been deployed since.
        """
        deployment = Deployment.from_json(body.deployment)
        check_deployment(deployment)
        changes: dict[str, Any] = await self._worker.apply(deployment, body.name, body.expected_revision)
        return changes

    async def answer(self, _: str, body: Answer) -> None:
        """Accept or refuse a proposed deployment, as the pipelines' driver."""
        self._worker.runtime().driver.answer(body.number, body.refusals)

    async def leave(self, _: str, __: Empty) -> None:
        """Report that the pipelines' driver ends."""
        self._worker.runtime().driver.left()

    async def drain(self, _: str, __: Empty) -> dict[str, Any]:
        """Stop the sources and let everything arrive. Returns at once; GET /application shows the progress."""
        return await self._worker.runtime().drain()

    async def log_level(self, _: str, body: SetLogLevel) -> None:
        """Set the worker's log level until it ends. A host sets that of its shards' processes too."""
        set_log_level(LogLevel(body.level))

    async def pause(self, _: str, body: SelectStreams) -> None:
        """Pause a connector or one of its streams until it is resumed."""
        runtime = self._worker.runtime()
        if runtime.is_elsewhere(body.connector) or await self._worker.other_partitions(body.connector):
            spec = runtime.application.deployment.connectors.get(body.connector)
            listens = spec is not None and spec.listen == "every-worker"
            raise RequestError(
                f"connector {body.connector!r} has events in other shards, where it cannot be paused",
                "Drain the application, or remove the connector from it." if listens else "Stop its programs instead.",
            )
        await runtime.pause(body.connector, _checked("stream", body.stream))

    async def resume(self, _: str, body: SelectStreams) -> None:
        """Resume what was paused."""
        await self._worker.runtime().resume(body.connector, _checked("stream", body.stream))


class _Sources:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def watermark(self, name: str, body: DeclareWatermark) -> StreamCount:
        """Declare a watermark for a stream, or for all streams that a source has. The reply has the number of streams.
        Of a source with several partitions: in all of them; a stream is in one of them, and some may have no stream
        at all.
        """
        stream, after = _checked("stream", body.stream), _checked("after", body.after)
        assert not isinstance(after, str)
        count, refusal = 0, RequestError("")
        try:
            count = await self._worker.declarations().watermark(name, body.time_us, stream, after)
        except RequestError as error:
            refusal = error
        for other in await self._worker.other_partitions(name):
            with suppress(RequestError):
                count += (await other.ask("watermark", body, StreamCount, AFTER_SECONDS_MAX)).streams
        if not count:
            raise refusal
        return StreamCount(count)

    async def end(self, name: str, _: Empty) -> None:
        """Declare that a source ends: no more events will come, in any of its partitions."""
        others, of = await self._worker.other_partitions(name), partition_of(name)
        if others or of.number:
            await self._worker.partitions().serve(of.source)
        for other in others:
            await other.ask("end", Empty(), Done, AFTER_SECONDS_MAX)
        await self._worker.declarations().end(name)


def _checked(what: str, value: str | int | None) -> str | int | None:
    """Msgspec's limits end at 63 bits; ids have 64."""
    if isinstance(value, int) and not 0 <= value <= _U64_MAX:
        raise RequestError(f"{what!r} is {value}, not a whole number from 0 to {_U64_MAX}")
    return value
