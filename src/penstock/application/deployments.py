"""The application that a worker runs, in DATA/application.json: written whole or not at all."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.core.errors import Damaged, NoRoom
from penstock.protocol.api.deployment import Deployment

FILE = "application.json"

_HINT = "Restore the file, or remove it and apply the application again: penstock apply app.yaml"


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    """Sources have stopped reading; what was read is processed and delivered."""
    DRAINED = "drained"
    """Everything is delivered, and all connectors are closed."""


Paused = tuple[str, int | None]
"""A connector, and one of its streams or None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """`revision` counts the deployments; 0 before the first one."""

    revision: int = 0
    name: str = ""
    """Of the file that was deployed, for the status; "" if unknown."""
    phase: Phase = Phase.RUNNING
    deployment: Deployment = field(default_factory=Deployment)
    paused: frozenset[Paused] = frozenset()
    """By an operator."""
    sinks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By pipeline: the sinks that this deployment, or any before it, has bound."""

    @property
    def is_deployed(self) -> bool:
        return self.revision > 0

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
            sinks={**self.sinks, **{name: self.sinks.get(name, frozenset()) | sinks for name, sinks in given.items()}},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "name": self.name,
            "state": self.phase.value,
            "deployment": self.deployment.as_json(),
            "sinks": {pipeline: sorted(names) for pipeline, names in self.sinks.items()},
            "paused": sorted(([name, stream] for name, stream in self.paused), key=repr),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Application":
        return cls(
            revision=data["revision"],
            name=data.get("name", ""),
            phase=Phase(data["state"]),
            deployment=Deployment.from_json(data["deployment"]),
            sinks={pipeline: frozenset(names) for pipeline, names in data["sinks"].items()},
            paused=frozenset((name, stream) for name, stream in data["paused"]),
        )


class DeploymentFile:
    """What `save` has written survives any crash; until it returns, the file keeps its old contents."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._writing = asyncio.Lock()

    def load(self) -> Application:
        """The application that was saved last; an empty one if there is no file. Raises Damaged."""
        try:
            return Application.from_json(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return Application()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{self._path} cannot be read: {error}", _HINT) from None

    async def save(self, application: Application) -> None:
        """In the order of the calls. Raises NoRoom if it cannot be written; then the file keeps its old contents."""
        data = json.dumps(application.as_json()).encode()
        async with self._writing:
            try:
                await asyncio.to_thread(self._write, data)
            except OSError as error:
                raise NoRoom(f"{self._path} cannot be written: {error}", "Check the disk, and try again.") from None

    def _write(self, data: bytes) -> None:
        """Readable by its owner only: connectors' options may contain secrets from the environment."""
        partial = self._path.with_suffix(".tmp")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        _sync_folder(self._path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
