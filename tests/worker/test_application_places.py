"""What other shards learn of an application: nothing of one that is refused, and all of one that is saved."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest

from penstock.application.deployments import Application, Phase
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.cluster.places import Kind, Places, Thing
from penstock.connectors.permissions import UNLIMITED
from penstock.core.errors import ConditionFailed, RequestError, TakenOver, Unavailable
from penstock.core.retry import RetryPolicy
from penstock.protocol.api.deployment import PASSTHROUGH, ConnectorSpec, Deployment, PipelineSpec
from penstock.protocol.api.shards import Declared
from penstock.worker import declared_sources
from penstock.worker.application_places import ApplicationPlaces
from penstock.worker.declared_sources import read
from penstock.worker.directory import Directory
from tests.support.waiting import eventually

ORDERS = ConnectorSpec(name="orders", id="orders", instance="01", type="connector-protocol", partitions=2)
HITS = ConnectorSpec(
    name="hits",
    id="hits",
    instance="01",
    type="tcp-server",
    config={"port": 9000},
    partitions=2,
    listen="every-worker",
)


@dataclass
class FakeRuntime:
    application: Application = field(default_factory=Application)
    refuses: bool = False
    changed: Any = None
    elsewhere: Any = None
    is_elsewhere: Any = None

    async def apply(
        self, deployment: Deployment, name: str, _: int | None, claim: Callable[[], Awaitable[None]]
    ) -> str:
        if self.refuses:
            raise RequestError("refused")
        await claim()
        self.save(replace(self.application, revision=self.application.revision + 1, deployment=deployment))
        return name

    def save(self, application: Application) -> None:
        self.application = application
        self.changed()


@dataclass
class FakeWire:
    is_away: bool = False
    asked: list[tuple[int, str]] = field(default_factory=list)

    async def ask(self, shard: int, _: str, request: Any, reply: Any, __: float = 0.0) -> Any:
        assert isinstance(request, Declared)
        if self.is_away:
            raise Unavailable(f"no worker serves shard {shard}")
        self.asked.append((shard, request.source))
        return reply()


class Scene:
    def __init__(self, bucket: Bucket | None = None, application: Application | None = None, term: int = 1) -> None:
        self.bucket: Bucket = bucket or open_bucket(f"memory://{uuid4().hex}")
        for shard in () if bucket is not None else (0, 1):
            self.bucket.create(f"cluster/shards/{shard}", [b"{}"])
        self.runtime, self.wire = FakeRuntime(application or Application()), FakeWire()
        self.directory = Directory(self.bucket, 0)
        self.places = ApplicationPlaces(self.directory, self.wire, UNLIMITED, self.runtime, term)  # type: ignore[arg-type]

    async def apply(self, *specs: ConnectorSpec, expected_revision: int | None = None) -> None:
        deployment = Deployment(connectors={one.name: one for one in specs})
        await self.places.apply(deployment, "app", expected_revision)

    def disorder(self, source: str) -> int | None:
        found = read(self.bucket, source, None)
        return None if found is None else found.settings.max_disorder_us

    def listens(self, source: str) -> bool:
        found = read(self.bucket, source, None)
        return found is not None and found.listener is not None


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(declared_sources, "RETRIES", RetryPolicy(0.01, 0.01))
    made = Scene()
    task = asyncio.create_task(made.places.run())
    yield made
    task.cancel()


async def test_an_application_that_is_refused_changes_nothing_for_other_shards(scene: Scene) -> None:
    await scene.apply(replace(ORDERS, max_disorder_us=1))
    assert scene.disorder("orders") == 1
    scene.runtime.refuses = True
    for wrong in (replace(ORDERS, max_disorder_us=2), replace(ORDERS, max_disorder_us=2, partitions=3)):
        with pytest.raises(RequestError):
            await scene.apply(wrong)
        await eventually(lambda: scene.places._publisher.is_current)
        assert scene.disorder("orders") == 1
    new = replace(ORDERS, name="new", id="new")
    with pytest.raises(RequestError, match="refused"):
        await scene.apply(new)
    assert not await scene.directory.placed_partitions("new")
    scene.runtime.refuses = False
    await scene.apply(replace(new, partitions=1))


async def test_an_application_claims_no_place_if_it_cannot_have_all_of_them(scene: Scene) -> None:
    new, large = (replace(ORDERS, name=name, id=name) for name in ("new", "large"))
    with pytest.raises(RequestError, match="'large' is to have 3 partitions, and the cluster has only 2 shards"):
        await scene.apply(new, replace(large, partitions=3))
    Places(scene.bucket).get(Thing(Kind.PIPELINE, "p"), wanted=1)
    pipeline = PipelineSpec(name="p", id="p", instance="01", spark=PASSTHROUGH)
    with pytest.raises(RequestError, match="pipeline 'p' is in shard 1"):
        await scene.places.apply(Deployment(connectors={"new": new}, pipelines={"p": pipeline}), "app")
    assert not await scene.directory.placed_partitions("new")
    await scene.apply(replace(new, partitions=1))


async def test_what_a_successor_declares_is_not_changed_by_an_owner_that_was_replaced(scene: Scene) -> None:
    await scene.apply(ORDERS)
    await eventually(lambda: scene.places._publisher.is_current)
    successor = Scene(scene.bucket, scene.runtime.application, term=2)
    task = asyncio.create_task(successor.places.run())
    await successor.apply(replace(ORDERS, max_disorder_us=2), HITS)
    await eventually(lambda: successor.places._publisher.is_current)
    task.cancel()
    with pytest.raises(TakenOver):
        await scene.places._publisher._publish()
    assert scene.disorder("orders") == 2
    assert scene.listens("hits")


@pytest.mark.parametrize(("kind", "config"), [("unix-server", {"path": "/tmp/s"}), ("metronome", {"interval": "1s"})])
async def test_a_connector_that_cannot_run_everywhere_is_refused(
    scene: Scene, kind: str, config: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match=f"'hits': one worker runs a connector of the type {kind}") as refused:
        await scene.apply(replace(HITS, type=kind, config=config))
    assert "tcp-server" in refused.value.hint
    assert not await scene.directory.placed_partitions("hits")


async def test_an_application_for_another_revision_claims_no_place(scene: Scene) -> None:
    await scene.apply(ORDERS)
    with pytest.raises(ConditionFailed):
        await scene.apply(replace(ORDERS, name="new", id="new"), expected_revision=0)
    assert not await scene.places._directory.placed_partitions("new")


async def test_what_is_saved_is_published_and_what_is_removed_is_withdrawn(scene: Scene) -> None:
    await scene.apply(ORDERS)
    await scene.apply(replace(ORDERS, max_disorder_us=2))
    await eventually(lambda: scene.disorder("orders") == 2)
    await scene.apply()
    await eventually(lambda: scene.disorder("orders") is None)


async def test_what_runs_in_the_application_is_refused_if_its_place_is_another_shard(scene: Scene) -> None:
    """Before anything is published."""
    Places(scene.bucket).partitions(Thing(Kind.SOURCE, "hits"), 2, wanted=1)
    with pytest.raises(RequestError, match="source 'hits' is in shard 1, and the application in shard 0"):
        await scene.apply(HITS, ORDERS)
    assert not scene.listens("hits")
    Places(scene.bucket).get(Thing(Kind.PIPELINE, "p"), wanted=1)
    pipeline = PipelineSpec(name="p", id="p", instance="01", spark=PASSTHROUGH)
    with pytest.raises(RequestError, match="pipeline 'p' is in shard 1, and the application in shard 0"):
        await scene.places.apply(Deployment(pipelines={"p": pipeline}), "app")


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_source_of_programs_that_is_in_another_shard_gets_its_settings_there(
    scene: Scene, partitions: int
) -> None:
    Places(scene.bucket).partitions(Thing(Kind.SOURCE, "orders"), partitions, wanted=1)
    orders = replace(ORDERS, partitions=partitions)
    await scene.apply(replace(orders, max_disorder_us=1))
    assert scene.runtime.is_elsewhere("orders")
    await eventually(lambda: scene.wire.asked == [(1, "orders")])
    assert scene.disorder("orders") == 1
    scene.wire.is_away = True
    await scene.apply(replace(orders, max_disorder_us=2))
    await eventually(lambda: scene.places.problems)
    scene.wire.is_away = False
    await eventually(lambda: not scene.places.problems)
    assert scene.disorder("orders") == 2
    await scene.apply()
    await eventually(lambda: scene.disorder("orders") is None)


async def test_the_place_of_a_source_is_known_before_a_stored_application_starts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    Places(scene.bucket).get(Thing(Kind.SOURCE, "orders"), wanted=1)
    orders, here = replace(ORDERS, partitions=1), replace(ORDERS, partitions=1, name="here", id="here")
    await scene.apply(orders, here)
    again = Scene(scene.bucket, scene.runtime.application)
    placed, failures = again.directory.placed_partitions, [Unavailable("the bucket does not answer")]

    async def placed_partitions(source: str) -> tuple[int, ...]:
        if failures:
            raise failures.pop()
        return await placed(source)

    monkeypatch.setattr(again.directory, "placed_partitions", placed_partitions)
    await again.places.find()
    assert [again.runtime.is_elsewhere(name) for name in ("orders", "here")] == [True, False]


async def test_other_shards_are_asked_to_listen_until_they_have_answered(scene: Scene) -> None:
    scene.wire.is_away = True
    await scene.apply(HITS)
    await eventually(lambda: scene.places.problems)
    assert scene.places.problems == [
        "not every shard has what is deployed: connector hits in shard 1: no worker serves shard 1"
    ]
    scene.wire.is_away = False
    await eventually(lambda: not scene.runtime.elsewhere())
    assert scene.wire.asked == [(1, "hits")]
    assert scene.places.problems == []
    await scene.apply(HITS)  # an operator wants what has failed to be started again
    await eventually(lambda: scene.wire.asked == 2 * [(1, "hits")])


async def test_a_drain_waits_until_other_shards_have_stopped_listening(scene: Scene) -> None:
    await scene.apply(HITS)
    await eventually(lambda: not scene.runtime.elsewhere())
    assert scene.listens("hits")
    scene.wire.is_away = True
    scene.runtime.save(replace(scene.runtime.application, phase=Phase.DRAINING))
    assert scene.runtime.elsewhere()
    await eventually(lambda: not scene.listens("hits"))
    assert scene.runtime.elsewhere()
    scene.wire.is_away = False
    await eventually(lambda: not scene.runtime.elsewhere())
