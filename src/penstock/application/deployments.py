"""The worker's deployment, stored in DATA/application.json (written atomically), and the diff of two deployments."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.application.plan import plan_of
from penstock.application.validation import check_deployment
from penstock.core.durable_files import write_private
from penstock.core.errors import ConditionFailed, Damaged, NoRoom, RequestError, UnreadableFormat
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import ConnectorSpec, Deployment

FILE = "application.json"

FORMAT = 1
"""The format version of the file, a deployment's own fields included."""

_APPLY_AGAIN = "Remove the file, restart the worker, and apply the application again: penstock apply app.yaml"
_HINT = "Restore the file, or remove it and apply the application again: penstock apply app.yaml"


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    """Sources have stopped reading; what was read is being processed and delivered."""
    DRAINED = "drained"
    """Everything is delivered, and all connectors are closed."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A stored deployment that this version cannot run."""

    stored: Any
    reason: str


Paused = tuple[str, int | None]
"""A connector, with one of its streams, or None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """`revision` counts the deployments; it is 0 before the first."""

    revision: int = 0
    name: str = ""
    """The deployed file's, for the status; "" if unknown."""
    phase: Phase = Phase.RUNNING
    deployment: Deployment = field(default_factory=Deployment)
    paused: frozenset[Paused] = frozenset()
    """Paused by an operator."""
    sinks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By pipeline: the sinks that this deployment, or any before it, has bound."""
    malformed: "Malformed | None" = None
    """What is stored in place of a deployment; then `deployment` is empty."""

    @property
    def is_deployed(self) -> bool:
        return self.revision > 0

    def check_revision(self, expected: int | None, deployment: Deployment) -> None:
        """Raises ConditionFailed if another revision was expected, and this is not the deployment already: whose reply
        is lost asks again.
        """
        if expected is None or expected == self.revision or (self.is_deployed and deployment == self.deployment):
            return
        raise ConditionFailed(
            f"revision {self.revision} is deployed, not {expected}: somebody has deployed another one since",
            "Look at what would change now, and apply again.",
        )

    def with_pause(self, paused: Paused, *, is_paused: bool) -> "Application":
        """Each pause ends separately: resuming a connector does not resume its paused streams."""
        return replace(self, paused=self.paused | {paused} if is_paused else self.paused - {paused})

    def with_deployment(self, deployment: Deployment, name: str = "") -> "Application":
        """The next revision, running."""
        given = {pipeline: frozenset(deployment.sink_names(pipeline)) for pipeline in deployment.pipelines}
        return replace(
            self,
            revision=self.revision + 1,
            name=name,
            phase=Phase.RUNNING,
            deployment=deployment,
            malformed=None,
            sinks={**self.sinks, **{name: self.sinks.get(name, frozenset()) | sinks for name, sinks in given.items()}},
        )

    def former(self, registered: Collection[str]) -> list[str]:
        """Pipelines of earlier deployments that are still registered: sources and retention wait for them."""
        return [name for name in self.sinks if name in registered and name not in self.deployment.pipelines]

    def without_former(self, pipeline: str) -> "Application":
        """After the pipeline was dropped: a later one of that name is not the application's."""
        if pipeline in self.deployment.pipelines:
            return self
        return replace(self, sinks={name: sinks for name, sinks in self.sinks.items() if name != pipeline})

    def as_json(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "name": self.name,
            "state": self.phase.value,
            "deployment": self.deployment.as_json() if self.malformed is None else self.malformed.stored,
            "sinks": {pipeline: sorted(names) for pipeline, names in self.sinks.items()},
            "paused": sorted(([name, stream] for name, stream in self.paused), key=repr),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Application":
        deployment, malformed = Deployment(), None
        try:
            deployment = Deployment.from_json(data["deployment"])
            check_deployment(deployment)
        except RequestError as error:
            deployment, malformed = Deployment(), Malformed(data["deployment"], str(error))
        return cls(
            revision=data["revision"],
            name=data.get("name", ""),
            phase=Phase(data["state"]),
            deployment=deployment,
            malformed=malformed,
            sinks={pipeline: frozenset(names) for pipeline, names in data["sinks"].items()},
            paused=frozenset((name, stream) for name, stream in data["paused"]),
        )


class DeploymentFile:
    """What `save` has written survives any crash; until it returns, the file keeps its old contents."""

    def __init__(self, folder: Path, keep: Callable[[str, bytes], None] = lambda *_: None) -> None:
        """`keep` is called, in a thread, with the name and the content of a file that was written: to store it
        elsewhere, too.
        """
        self._path = folder / FILE
        self._keep = keep
        self._writing = asyncio.Lock()

    def load(self) -> Application:
        """The application that was saved last; an empty one if there is no file. Raises Damaged; UnreadableFormat if
        another version wrote it.
        """
        try:
            data = json.loads(self._path.read_bytes())
            if (found := data.get("format")) != FORMAT:
                raise UnreadableFormat(str(self._path), found if isinstance(found, int) else None, FORMAT, _APPLY_AGAIN)
            return Application.from_json(data)
        except FileNotFoundError:
            return Application()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{self._path} cannot be read: {error}", _HINT) from None

    async def save(self, application: Application) -> None:
        """In the order of the calls. Raises NoRoom if it cannot be written; then the file keeps its old contents."""
        data = json.dumps({"format": FORMAT, **application.as_json()}).encode()
        async with self._writing:
            try:
                # Private, because options may contain literal secrets.
                await asyncio.to_thread(self._write, data)
            except OSError as error:
                raise NoRoom(f"{self._path} cannot be written: {error}", "Check the disk, and try again.") from None

    def _write(self, data: bytes) -> None:
        write_private(self._path, data)
        self._keep(FILE, data)


# The diff of two deployments: which connectors, pipelines and sinks to stop, start and change. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorChanges:
    """Connectors in none of these keep running. A connector that is restarted is in both `stop` and `start`."""

    stop: frozenset[str] = frozenset()
    start: frozenset[str] = frozenset()
    configure: frozenset[str] = frozenset()
    """These keep running with a different quota, acknowledgement, watermark or breaker policy."""
    relink: frozenset[str] = frozenset()
    """These keep running, but their events lead elsewhere, or their `in` port is linked differently."""

    def as_json(self) -> dict[str, list[str]]:
        return {
            "stopped": sorted(self.stop - self.start),
            "started": sorted(self.start - self.stop),
            "restarted": sorted(self.stop & self.start),
            "configured": sorted(self.configure),
            "relinked": sorted(self.relink),
        }


@dataclass(frozen=True, slots=True)
class PipelineChanges:
    """Pipelines in neither keep running. One that is restarted is in `start`, and was in the old deployment."""

    stop: tuple[str, ...]
    start: tuple[str, ...]
    restart: frozenset[str]

    def as_json(self) -> dict[str, list[str]]:
        return {
            "pipelines_stopped": sorted(self.stop),
            "pipelines_started": sorted({*self.start} - self.restart),
            "pipelines_restarted": sorted(self.restart),
        }


def connector_changes(old: Deployment, new: Deployment) -> ConnectorChanges:
    """From what runs now to what should run."""
    stay = {name for name in old.connectors.keys() & new.connectors.keys() if _same_connector(name, old, new)}
    return ConnectorChanges(
        stop=frozenset(old.connectors.keys() - stay),
        start=frozenset(new.connectors.keys() - stay),
        configure=frozenset(n for n in stay if _settings(old.connectors[n]) != _settings(new.connectors[n])),
        relink=frozenset(name for name in stay if links_of(old, name) != links_of(new, name)),
    )


def pipeline_changes(old: Deployment, new: Deployment) -> PipelineChanges:
    """A pipeline is restarted if anything that its query is built from has changed. A removed pipeline is stopped and
    keeps its positions in its sources and sinks: if it is deployed again, it continues there. Raises RequestError, like
    `plan_of`.
    """
    both = old.pipelines.keys() & new.pipelines.keys()
    same = {name for name in both if plan_of(old, name) == plan_of(new, name)}
    return PipelineChanges(
        tuple(name for name in old.pipelines if name not in new.pipelines),
        tuple(name for name in new.pipelines if name not in same),
        frozenset(both - same),
    )


def links_of(deployment: Deployment, connector: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """The sinks downstream, the pipelines that its events reach, and whether its `in` port is linked."""
    return deployment.downstream(connector), deployment.pipelines_of(connector), deployment.has_in(connector)


def _same_connector(name: str, old: Deployment, new: Deployment) -> bool:
    return is_built_alike(old.connectors[name], new.connectors[name])


def is_built_alike(one: ConnectorSpec, other: ConnectorSpec) -> bool:
    """Whether a connector that runs need not be replaced: at most it is configured."""
    return _built_from(one) == _built_from(other)


def _built_from(spec: ConnectorSpec) -> ConnectorSpec:
    """What the connector is built from: excludes the codecs that Spark decodes its events with, and what `configure`
    changes.
    """
    blank = ConnectorSpec(name=spec.name, id=spec.id, instance=spec.instance, type=spec.type)
    return replace(
        blank,
        config=spec.config,
        interceptors_in=spec.interceptors_in,
        interceptors_out=spec.interceptors_out,
        reconnect=spec.reconnect,
        segments=spec.segments,
        partitions=spec.partitions,
        listen=spec.listen,
    )


def _settings(spec: ConnectorSpec) -> tuple[object, ...]:
    return (
        *(
            spec.quota_bytes,
            spec.window_bytes,
            spec.ack,
            spec.max_disorder_us,
            spec.idle_timeout_seconds,
            spec.when_all_idle,
        ),
        *(spec.event_time_unit, spec.event_time_ingest, spec.event_time, spec.breaker),
    )


@dataclass(frozen=True, slots=True)
class Rebinding:
    """The changes of one pipeline's sinks: first some are unbound, then others are bound."""

    unbind: frozenset[str]
    bind: Mapping[str, SinkSpec]
    moved: frozenset[str] = frozenset()
    """Sinks that move to another port because of another codec: rebound when the pipeline restarts and they have
    received everything from the old port."""


def rebinding(wanted: Mapping[str, SinkSpec], given: Collection[str], bound: Mapping[str, SinkSpec]) -> Rebinding:
    """From the `bound` sinks to the `wanted` ones. Only sinks that an application has bound before (`given`) are
    unbound: those that operators have bound by hand stay.
    """
    gone = {name for name in bound if name in given and name not in wanted}
    moved = {name for name, spec in wanted.items() if name in bound and bound[name].port != spec.port}
    return Rebinding(
        frozenset(gone),
        {name: spec for name, spec in wanted.items() if bound.get(name) != spec and name not in moved},
        frozenset(moved),
    )
