"""The connectors that this shard runs for partitions of sources whose application is in another shard
(`listen: every-worker`).
"""

import asyncio
import logging
from dataclasses import replace

from penstock.application.deployments import is_built_alike
from penstock.application.instance import Instance, WorkerParts, build
from penstock.connectors.permissions import Permissions
from penstock.core.errors import PenstockError
from penstock.ingest.out_ports.host import State
from penstock.ingest.settings import Listener
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from penstock.protocol.stored.names import Partition

log = logging.getLogger(__name__)


class PartitionInstances:
    """By the name of the partition, such as `orders#1`. Nothing is linked to their ports `in`."""

    def __init__(self, around: WorkerParts, permissions: Permissions) -> None:
        self._around = around
        self._permissions = permissions
        self._is_stopped = False
        self.running: dict[str, Instance] = {}
        self.failures: dict[str, tuple[ConnectorSpec, str]] = {}
        """Connectors that cannot run here, and why. Each call of `listen` tries again."""

    async def listen(self, of: Partition, listener: Listener | None, *, again: bool) -> None:
        """Run the connector for this partition as declared; None: stop it. Returns when that is done, and what was read
        by one that is stopped is durable. One that runs like that already is left alone; `again`: unless it has used up
        its attempts. One call at a time for a partition.
        """
        name, running = of.name, self.running.get(of.name)
        spec = None if listener is None or self._is_stopped else replace(listener.spec, name=name)
        if running is not None and not self._stays(running, spec, again=again):
            del self.running[name]
            await running.close()
            running = None
        self.failures.pop(name, None)
        if spec is None or listener is None:
            return
        if running is None:
            self._start(spec, listener)
        else:
            running.host.has_out = listener.has_out
            if running.host.spec != spec:
                running.configure(spec)

    def _stays(self, running: Instance, spec: ConnectorSpec | None, *, again: bool) -> bool:
        if spec is None or not is_built_alike(running.host.spec, spec):
            return False
        return not again or running.host.status().state != State.FAILED.value

    def _start(self, spec: ConnectorSpec, listener: Listener) -> None:
        try:
            made = Instance(build(spec, self._permissions), Deployment(), self._around)
        except PenstockError as error:
            log.error("connector %s does not run here: %s", spec.name, error)
            self.failures[spec.name] = spec, f"{error} {error.hint}".strip()
            return
        made.host.has_out = listener.has_out
        self.running[spec.name] = made
        made.start()

    async def stop_reading(self) -> None:
        """Stores what was read."""
        self._is_stopped = True
        await asyncio.gather(*(one.drain() for one in self.running.values()), return_exceptions=True)

    async def stop(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(one.leave() for one in self.running.values()), return_exceptions=True)
