"""The blocking client of the coordinator: a method for each of its routes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from penstock.client.coordinator.connection import WorkerClient
from penstock.coordinator.dead_letter_messages import LetterInfo, LetterList, Replayed
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, TableDdl
from penstock.coordinator.messages import (
    BatchRanges,
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    LoadState,
    Merged,
    PipelineStatus,
    Range,
    Running,
    Segments,
    Splits,
    Staged,
    Started,
    Starting,
    StoredInput,
    starting_as_json,
)
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import check_pipeline_name

NO_LIMITS = Limits()

DATABASE_SECONDS_MAX = 30.0
"""For a worker to look into a database."""


class CoordinatorClient(WorkerClient):
    """Every call may be repeated, and is, for `retry_seconds` while the worker is away; then Unavailable is raised.

    What an answer says is durable. Refusals are raised at once, as the errors of `penstock.core.errors`. It connects
    when it is first used. Not for several threads at once: give each its own.
    """

    def start(
        self,
        name: str,
        inputs: Mapping[str, InputSpec],
        outputs: Sequence[str] | None = None,
        limits: Limits = NO_LIMITS,
        *,
        fresh: bool | None = None,
        request: str | None = None,
    ) -> Started:
        """Begin a new generation; the older ones are fenced. The same `request` text gets the same generation again,
        and its inputs are added; None is a new one. `outputs`: [] for Spark's own sinks, None if not known yet.
        `fresh`: True says that there is no checkpoint, which is refused if the ledger has epochs.
        """
        body = {
            "inputs": {key: spec.as_json() for key, spec in inputs.items()},
            "outputs": None if outputs is None else list(outputs),
            "limits": asdict(limits),
            "fresh": fresh,
            "request": request or str(uuid4()),
        }
        return Started(**self._pipeline(name, "start", body))

    def announce(self, pipelines: Mapping[str, Sequence[str]]) -> None:
        """Say that Spark is being started for these pipelines, which will read these sources. Who asks is told so until
        they start; say it again every few seconds.
        """
        self._ask("POST", "/starting", {"pipelines": {name: list(sources) for name, sources in pipelines.items()}})

    def describe(self, name: str, generation: int, schemas: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        """Say what the JSON rows of each port hold: names and Spark types of their fields. SQL sinks make tables by it.
        A port whose rows are not made of columns is left out.
        """
        body = {"generation": generation, "schemas": {port: [*map(list, fields)] for port, fields in schemas.items()}}
        self._pipeline(name, "describe", body)

    def initial(self, name: str, generation: int, input: str) -> InputOffset:  # noqa: A002  the contract's word
        """Where epoch 0 begins. Refused when the ledger has epochs: Spark asks this without a checkpoint only."""
        return InputOffset.from_json(self._pipeline(name, "initial", {"generation": generation, "input": input}))

    def attach(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        load: str,
        sources: Sequence[str],
        *,
        upto: Segments | None = None,
    ) -> None:
        """Say that a load of a new query begins, which goes up to `upto`: all loads of the query do so before the first
        asks for a cut. A query before it in the same generation is over. `load` is a text that no other load has.
        """
        body = {
            "generation": generation,
            "input": input,
            "load": load,
            "sources": list(sources),
            "upto": None if upto is None else dict(upto),
        }
        self._pipeline(name, "attach", body)

    def cut(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        start: InputOffset,
        *,
        load: str = "",
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_ms: int = 0,
        state: LoadState | None = None,
    ) -> Cut:
        """The end of the epoch that begins at `start`: the same one whenever it is asked. It proves that everything
        before `start` is committed. Waits up to `wait_ms` for something new. `load`: as it was attached. `state`: of a
        load whose rows tell a stateful operator the watermark.
        """
        body = {
            "generation": generation,
            "input": input,
            "load": load,
            "start": start.as_json(),
            "upto": None if upto is None else dict(upto),
            "limits": None if limits is None else {"bytes": limits.bytes, "rows": limits.rows},
            "wait_ms": wait_ms,
            "state": state,
        }
        answer = self._pipeline(name, "cut", body, wait_ms / 1000)
        return Cut(InputOffset.from_json(answer["offset"]), answer["held"])

    def reading(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        start: InputOffset,
        end: InputOffset,
    ) -> dict[str, int]:
        """Say that Spark reads this range, if it has not just asked for the cut. Gives where it really begins: also in
        segments that `start` does not name, as those of a source that was linked since.
        """
        body = {"generation": generation, "input": input, "start": start.as_json(), "end": end.as_json()}
        answer: dict[str, int] = self._pipeline(name, "reading", body).get("segments", {})
        return answer

    def running(self, name: str, generation: int | None = None) -> Running:
        """The epochs of Spark's current batch and the watermarks at both ends, for the tasks that work on it."""
        asked = "" if generation is None else f"?generation={generation}"
        return Running(**self._ask("GET", f"/pipelines/{check_pipeline_name(name)}/running{asked}"))

    def report_windows(
        self,
        name: str,
        operator: str,
        epoch: int,
        buckets: Sequence[Mapping[str, int | None]],
        *,
        generation: int | None = None,
    ) -> None:
        """What the buckets of a window operator hold after an epoch, as numbers by their names: for `/metrics`."""
        body = {"generation": generation, "operator": operator, "epoch": epoch, "buckets": [*map(dict, buckets)]}
        self._pipeline(name, "windows", body)

    def merge(self, name: str, batch: int, staged: Iterable[Staged], *, generation: int | None = None) -> Merged:
        """Make what was staged, in this order, part of the output segments: all of it, once."""
        body = {"generation": generation, "batch": batch, "staged": [asdict(s) for s in staged]}
        return Merged(**self._pipeline(name, "merge", body))

    def abort(self, name: str, batch: int, *, generation: int | None = None) -> None:
        """Delete what the batch has staged."""
        self._pipeline(name, "abort", {"generation": generation, "batch": batch})

    def complete(self, name: str, generation: int, epoch: int) -> None:
        """Say that Spark has committed all epochs up to this one."""
        self._pipeline(name, "complete", {"generation": generation, "epoch": epoch})

    def heartbeat(self, name: str, generation: int, *, stopped: bool = False, failed: bool = False) -> None:
        """Say that this generation lives, that it has `stopped` as it should, or that it has `failed`. Raises Fenced
        when it is not the newest.
        """
        self._pipeline(name, "heartbeat", {"generation": generation, "stopped": stopped, "failed": failed})

    def batch(self, name: str) -> BatchRanges:
        """What Spark's current batch reads, or the one that has failed."""
        return BatchRanges.from_json(self._ask("GET", f"/pipelines/{check_pipeline_name(name)}/batch"))

    def stored_input(self, name: str) -> StoredInput:
        """How much of its input is still there for a pipeline that is reset."""
        return StoredInput(**self._ask("GET", f"/pipelines/{check_pipeline_name(name)}/input"))

    def reset(self, name: str, *, accept_partial: bool = False) -> None:
        """Begin a new incarnation: the next start decides where to begin. Refused when retention has removed some of
        its input, unless `accept_partial`.
        """
        self._pipeline(name, "reset", {"accept_partial": accept_partial})

    def drop(self, name: str, *, outputs: bool = False) -> None:
        """Forget the pipeline: it holds nothing back any more. It is well if it is not there. With `outputs` its output
        segments are deleted, too.
        """
        self._pipeline(name, "drop", {"outputs": outputs})

    def bind(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """From now on what the ports put out goes to these sinks, by their names, too; also before the first start. The
        same sink again changes nothing; a known name with another URL goes on there from where it is.
        """
        self._pipeline(name, "bind", {"sinks": {sink: asdict(spec) for sink, spec in sinks.items()}})

    def unbind(self, name: str, sink: str) -> None:
        """Nothing more goes to the sink, and nothing waits for it."""
        self._pipeline(name, "unbind", {"sink": sink})

    def epochs(self, name: str) -> list[EpochStatus]:
        """Those that are not delivered everywhere yet, oldest first."""
        answer = self._ask("GET", f"/pipelines/{check_pipeline_name(name)}/epochs")
        return [EpochStatus.from_json(one) for one in answer["epochs"]]

    def retry(self, name: str) -> None:
        """Try to deliver now, without waiting for the back-off."""
        self._pipeline(name, "retry", {})

    def park(self, name: str, epoch: int, sink: str | None = None) -> None:
        """Never give the epoch to this sink, or to every sink that refuses it: its bytes become dead letters. Final."""
        self._pipeline(name, "park", {"epoch": epoch, "sink": sink})

    def letters(self, name: str, port: str | None = None, *, limit: int = 0, oldest: bool = False) -> LetterList:
        """Of one port of letters, or of both: so many of the newest, or of the oldest, in their order."""
        asked = f"?limit={limit}&oldest={str(oldest).lower()}" + (
            "" if port is None else f"&port={quote(port, safe='')}"
        )
        return LetterList.from_json(self._ask("GET", f"/pipelines/{check_pipeline_name(name)}/letters{asked}"))

    def letter(self, name: str, port: str, at: int) -> LetterInfo:
        """The letter that begins there in its port's output segment, with its value."""
        path = f"/pipelines/{check_pipeline_name(name)}/letters/{quote(port, safe='')}/{at}"
        return LetterInfo.from_json(self._ask("GET", path))

    def replay(self, name: str, port: str, after: int, upto: int, *, input: str | None = None) -> Replayed:  # noqa: A002
        """Send the letters between two places through again: from where `letters` says that the last replay has ended,
        to the end of one of them. The same call again does nothing, and tells the same.
        """
        body = {"port": port, "after": after, "upto": upto, "input": input}
        return Replayed(**self._pipeline(name, "replay", body))

    def ddl(self, name: str, sink: str) -> TableDdl:
        """What makes the table of a SQL sink fit the rows of its pipeline, against the table as it is now."""
        path = f"/pipelines/{check_pipeline_name(name)}/sinks/{check_pipeline_name(sink, 'sink')}/ddl"
        return TableDdl(**self._ask("GET", path, wait_seconds=DATABASE_SECONDS_MAX))

    def sinks(self) -> list[SinkStatus]:
        """Of all pipelines."""
        return [SinkStatus(**one) for one in self.status().get("sinks", [])]

    def pipelines(self) -> list[PipelineStatus]:
        return [PipelineStatus.from_json(p) for p in self._ask("GET", "/pipelines")["pipelines"]]

    def status(self) -> dict[str, Any]:
        """The worker's /status."""
        answer: dict[str, Any] = self._ask("GET", "/status")
        return answer

    def resolve(self, sources: Sequence[str], position: Starting) -> dict[str, int]:
        """The sources' segments, and where in them `position` is."""
        body = {"sources": list(sources), "position": starting_as_json(position)}
        answer: dict[str, int] = self._ask("POST", "/sources/resolve", body)["segments"]
        return answer

    def cut_sources(
        self,
        sources: Sequence[str],
        start: Segments,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_ms: int = 0,
    ) -> dict[str, int]:
        """A cut for a reader without a pipeline; nothing is written down, so the same start may get another end."""
        body = {
            "sources": list(sources),
            "start": dict(start),
            "upto": None if upto is None else dict(upto),
            "limits": None if limits is None else {"bytes": limits.bytes, "rows": limits.rows},
            "wait_ms": wait_ms,
        }
        answer: dict[str, int] = self._ask("POST", "/sources/cut", body, wait_ms / 1000)["segments"]
        return answer

    def splits(self, ranges: Iterable[Range], parts: int, *, bytes_min: int = 0, skip_lost: bool = False) -> Splits:
        """The ranges in about `parts` pieces, in order, on record ends. Raises DataLoss where bytes are gone, unless
        `skip_lost` passes over them.
        """
        body = {
            "ranges": [r.as_json() for r in ranges],
            "parts": parts,
            "bytes_min": bytes_min,
            "skip_lost": skip_lost,
        }
        answer = self._ask("POST", "/splits", body)
        return Splits([*map(Range.from_json, answer["splits"])], [*map(Range.from_json, answer.get("lost", []))])

    def declare_watermark(
        self, source: str, time_us: int, stream: int | str | None = None, *, after: int | None = None
    ) -> int:
        """Say that no more events before this time come on the stream, given by its id or its name, behind the message
        `after`, for which the worker waits; without a stream, on all that the connector has now. Returns on how many.
        """
        body = {"time_us": time_us, "stream": stream, "after": after}
        count: int = self._source(source, "watermark", body)["streams"]
        return count

    def end_source(self, source: str) -> None:
        """Say that the connector has ended for good: where all that a pipeline reads has, its windows close."""
        self._source(source, "end", {})

    def _source(self, source: str, verb: str, body: Any) -> Any:
        if not source or "/" in source:  # it would be another path
            raise RequestError(f"{source!r} is no name for a source", "Look which there are: penstock status")
        return self._ask("POST", f"/sources/{quote(source, safe='')}/{verb}", body)

    def stream_names(self, source: str, ids: Iterable[int]) -> list[str]:
        """The names of a connector's streams, in the order of the ids; "" for one that is not known."""
        path = f"/sources/{quote(source, safe='')}/streams"
        answer: list[str] = self._ask("POST", path, {"ids": list(ids)})["names"]
        return answer

    def _pipeline(self, name: str, verb: str, body: Any, wait_seconds: float = 0.0) -> Any:
        return self._ask("POST", f"/pipelines/{check_pipeline_name(name)}/{verb}", body, wait_seconds)
