"""Where the connectors and pipelines of an application are: all in one shard, and partitions of its sources in others.
So are sources of programs that had a place before the application had one: what programs send needs nothing of it but
the source's settings, and pipelines read sources of any shard.

An application that is refused changes nothing: places that exist are compared first, new ones are claimed when nothing
else can refuse it, and what other shards know of its sources is published when it is saved. Only a source that has no
place yet is published just before it gets one, because from then on programs may join it anywhere.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from penstock.application.deployments import Phase
from penstock.application.instance import build, build_all
from penstock.application.runtime import Runtime
from penstock.cluster.places import Kind, Thing
from penstock.connectors.permissions import Permissions
from penstock.connectors.registry import CONNECTORS, types_of_every_worker
from penstock.coordinator.shards import ShardWire
from penstock.core.errors import PenstockError, RequestError
from penstock.core.retry import Pauses, RetryPolicy
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from penstock.worker.declared_sources import Declaration, SourcePublisher, Version
from penstock.worker.directory import Directory

log = logging.getLogger(__name__)

RETRIES = RetryPolicy(first_seconds=0.1, max_seconds=2.0)
"""While the bucket does not answer."""


def check_alone(deployment: Deployment) -> None:
    """For a worker that is not in a cluster. Raises RequestError."""
    for spec in deployment.connectors.values():
        if spec.listen == "every-worker":
            raise RequestError(
                f"connector {spec.name!r}: listen: every-worker needs a cluster, and this worker has no --store",
                "Leave listen and partitions out, or start the workers with --store.",
            )
        if spec.partitions > 1:
            log.warning("source %r has one partition: a worker without --store has one shard", spec.name)


def _is_of_programs(spec: ConnectorSpec) -> bool:
    """Whether programs bring its events, so that nothing of it runs where the source is."""
    try:
        return spec.listen == "one-worker" and CONNECTORS.get(spec.type).about.capabilities.partitions
    except PenstockError:  # a type that is not installed here: the runtime reports it
        return False


class ApplicationPlaces:
    """Of a shard of a cluster."""

    def __init__(
        self, directory: Directory, wire: ShardWire, permissions: Permissions, runtime: Runtime, term: int
    ) -> None:
        """`term`: of this owner of the shard; durable."""
        self._directory = directory
        self._permissions = permissions
        self._runtime = runtime
        self._publisher = SourcePublisher(
            directory, wire, self._declared, lambda: Version(term, runtime.application.revision)
        )
        self._applying = asyncio.Lock()
        self._elsewhere: set[str] = set()
        """Sources of programs whose first partition is in another shard. Places never change."""
        runtime.is_elsewhere = self._elsewhere.__contains__
        runtime.changed = self._publisher.settle
        runtime.elsewhere = self._waits_for

    async def find(self) -> None:
        """Before the runtime starts: which sources of the stored application are elsewhere."""
        pauses = Pauses(RETRIES)
        left = [spec.name for spec in self._runtime.application.deployment.connectors.values() if _is_of_programs(spec)]
        while left:
            try:
                shards = await self._directory.placed_partitions(left[-1])
            except PenstockError as error:
                log.warning("the application waits for the places of its sources: %s", error)
                await asyncio.sleep(pauses.next())
                continue
            if shards and shards[0] != self._directory.shard:
                self._elsewhere.add(left[-1])
            left.pop()

    async def run(self) -> None:
        """Let other shards know what is deployed. A shard without an application has nothing to say."""
        while not self._runtime.application.is_deployed:
            await self._publisher.wanted()
        await self._publisher.run()

    def _waits_for(self) -> list[str]:
        """What other shards still have to do."""
        listens = any(one.listen == "every-worker" for one in self._runtime.application.deployment.connectors.values())
        if self._publisher.waits_for or self._publisher.is_current or not listens:
            return self._publisher.waits_for
        return ["connectors of other shards are still to be asked"]

    @property
    def problems(self) -> list[str]:
        return [f"not every shard has what is deployed: {text}" for text in self._publisher.waits_for]

    async def apply(self, deployment: Deployment, name: str, expected_revision: int | None = None) -> Any:
        """As the runtime does. Raises RequestError for what is in another shard than the application, and is not a
        source of programs, or cannot have the partitions that it is to have.
        """
        async with self._applying:
            self._runtime.application.check_revision(expected_revision, deployment)
            self._publisher.forget_answers()  # other shards start what has failed, as the runtime does
            try:
                new = await self._without_place(deployment)
                claim = partial(self._claim, deployment, new)
                return await self._runtime.apply(deployment, name, expected_revision, claim)
            finally:
                self._publisher.settle()

    def _declared(self) -> Mapping[str, Declaration]:
        application = self._runtime.application
        return self._declarations(application.deployment, is_running=application.phase is Phase.RUNNING)

    def _declarations(self, deployment: Deployment, *, is_running: bool) -> dict[str, Declaration]:
        return {
            spec.name: Declaration(
                spec=spec,
                own_event_times=self._own_event_times(spec),
                has_out=deployment.has_out(spec.name),
                is_running=is_running,
            )
            for spec in deployment.connectors.values()
            if spec.partitions > 1 or spec.name in self._elsewhere
        }

    def _own_event_times(self, spec: ConnectorSpec) -> bool | None:
        try:
            return build(spec, self._permissions).capabilities.own_event_times
        except PenstockError:  # the runtime reports it; what its type says is right for nearly all
            return CONNECTORS.get(spec.type).about.capabilities.own_event_times

    async def _without_place(self, deployment: Deployment) -> list[ConnectorSpec]:
        """The connectors that are to get a place, which never changes, so all that can be wrong is found before."""
        self._check_partitions(deployment.connectors.values())
        new = list[ConnectorSpec]()
        for spec in deployment.connectors.values():
            shards = await self._directory.placed_partitions(spec.name)
            if shards:
                self._check_place(spec, shards)
            else:
                await self._directory.check_count(spec.name, spec.partitions)
                new.append(spec)
        for name in deployment.pipelines:
            thing = Thing(Kind.PIPELINE, name)
            if (shard := await self._directory.placed(thing)) is not None:
                self._check_shard(thing, shard)
        return new

    async def _claim(self, deployment: Deployment, new: Iterable[ConnectorSpec]) -> None:
        """Checked again: somebody else may have been faster."""
        own = self._directory.shard
        declarations = self._declarations(deployment, is_running=True)
        for spec in new:
            if spec.name in declarations:
                await self._publisher.announce(declarations[spec.name])
            self._check_place(spec, await self._directory.claim_partitions(spec.name, spec.partitions, own))
        for name in deployment.pipelines:
            thing = Thing(Kind.PIPELINE, name)
            self._check_shard(thing, await self._directory.place(thing, own))

    def _check_partitions(self, specs: Iterable[ConnectorSpec]) -> None:
        several = [spec for spec in specs if spec.partitions > 1]
        for built in build_all(several, self._permissions).values():
            spec, known = built.spec, built.capabilities
            if spec.listen == "every-worker" and not known.every_worker:
                raise RequestError(
                    f"connector {spec.name!r}: one worker runs a connector of the type {spec.type}",
                    f"Leave listen out. Possible for: {types_of_every_worker()}.",
                )
            if spec.listen == "one-worker" and not known.partitions:
                raise RequestError(f"connector {spec.name!r} cannot have partitions", "Leave partitions out.")

    def _check_place(self, spec: ConnectorSpec, shards: tuple[int, ...]) -> None:
        if len(shards) != spec.partitions:
            raise RequestError(
                f"source {spec.name!r} has {len(shards)} partitions, not {spec.partitions}, and their number never "
                "changes",
                f"Write partitions: {len(shards)}, or use another name.",
            )
        if not _is_of_programs(spec):
            self._check_shard(Thing(Kind.SOURCE, spec.name), shards[0])
        elif shards[0] != self._directory.shard:
            self._elsewhere.add(spec.name)

    def _check_shard(self, thing: Thing, shard: int) -> None:
        if shard != self._directory.shard:
            raise RequestError(
                f"{thing} is in shard {shard}, and the application in shard {self._directory.shard}",
                "Use another name: the shard of a source or a pipeline never changes.",
            )
