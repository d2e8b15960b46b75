"""A sink, or the worker, is restored from a copy: nothing is lost or duplicated unless an operator agrees."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import PipelineError
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff, service
from penstock.delivery.rewind import Consent
from penstock.delivery.sink_slot import SlotState
from penstock.protocol.api.delivery import SinkStatus
from penstock.store.files import RealFiles
from penstock.worker.blockages import Facts, blockages
from tests.coordinator.scene import SETTINGS, Scene
from tests.delivery.places import FilePlace, Place, PostgresPlace, ProgramPlace, SqlitePlace
from tests.delivery.stage import PIPELINE, Stage

EPOCHS = [[b'{"value": "%d of epoch %d"}' % (number, epoch) for number in range(3)] for epoch in range(5)]

RETAINS = replace(SETTINGS, truncate_seconds=10_000.0)
"""Keeps the output for the length of a test, although all sinks have it."""

NO_CONSENT = Consent(gap=False, duplicates=False, by="ada", time_us=7)
GAP = NO_CONSENT._replace(gap=True)
DUPLICATES = NO_CONSENT._replace(duplicates=True)


def texts(*epochs: int) -> list[str]:
    return [json.loads(row)["value"] for epoch in epochs for row in EPOCHS[epoch]]


@pytest.fixture(
    params=[
        "file",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.process),
        pytest.param("program", marks=pytest.mark.process),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "postgres":
        yield PostgresPlace(
            request.getfixturevalue("postgres_server").socket_folder, f"t{abs(hash(request.node.name))}"
        )
    elif request.param == "program":
        program = ProgramPlace(tmp_path)
        with program.process:
            yield program
    else:
        yield FilePlace(tmp_path) if request.param == "file" else SqlitePlace(tmp_path)


class Site:
    """A worker's data in files, and a pipeline with one voting sink. `running` runs the worker."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._data = folder / "worker"
        self.place = place
        self.url = "memory:s"
        self.stage = Stage()

    @asynccontextmanager
    async def running(self, settings: Any = RETAINS) -> AsyncIterator["Site"]:
        self.stage.scene = Scene(RealFiles(self._data), settings)
        await self.stage.open()
        try:
            await self.stage.scene.coordinator.deliveries.bind(PIPELINE, {"s": ("out", self.url, True)})
            yield self
        finally:
            await self.stage.close()

    async def deliver(self, *epochs: int) -> None:
        """Output an epoch, and wait until it is committed at the sink."""
        await self.merge(*epochs)
        await self.stage.delivered()
        await self.stage.scene.until(lambda: self.place.rows()[-3:] == texts(epochs[-1]))

    async def merge(self, *epochs: int) -> None:
        for epoch in epochs:
            assert self.stage.merged == epoch
            await self.stage.put_out({"out": EPOCHS[epoch]})

    def copy_worker(self, name: str) -> None:
        shutil.copytree(self._data, self._data.with_name(f"worker.{name}"))

    def restore_worker(self, name: str, merged: int) -> None:
        shutil.rmtree(self._data)
        shutil.copytree(self._data.with_name(f"worker.{name}"), self._data)
        self.stage.merged = merged

    @property
    def delivery(self) -> service.Delivery:
        assert self.stage.delivery is not None
        return self.stage.delivery

    @property
    def status(self) -> SinkStatus:
        return self.delivery.sinks()[0]

    async def refused(self) -> str:
        """Wait until the sink is refused. Returns the sentences of the status."""
        await self.stage.scene.until(lambda: self.status.state == SlotState.DIVERGED.value, 60)
        facts = Facts(pipelines=self.stage.scene.coordinator.pipelines(), sinks=self.delivery.sinks())
        (sentence,) = [str(one) for one in blockages(facts) if one.kind == "sink"]
        return sentence

    async def complete(self) -> None:
        """Wait until the sink is open, and has committed everything."""
        await self.stage.scene.until(
            lambda: self.stage.is_delivered() and self.status.state == SlotState.READY.value, 60
        )

    def sink(self) -> Any:
        return self.stage.scene.coordinator.deliveries.state.pipelines[PIPELINE].sinks["s"]


@pytest.fixture
def site(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    def make(pipeline: str, name: str, sink: Any, wake: Callable[[], None] | None = None) -> Any:
        return place.sink()

    monkeypatch.setattr(service.Delivery, "_make", staticmethod(make))
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
    return Site(tmp_path, place)


async def test_a_sink_older_than_the_worker_gets_what_it_lacks_once(site: Site) -> None:
    async with site.running():
        await site.deliver(0, 1)
    site.place.copy("older")
    async with site.running():
        await site.deliver(2, 3)
    site.place.restore("older")
    async with site.running():
        sentence = await site.refused()
        assert "sink s of pipeline p is older than the worker's data: the sink has " in sentence
        assert "the ledger has epoch 3 " in sentence
        assert "penstock sink rewind s --pipeline p" in sentence
        await site.merge(4)
        await asyncio.sleep(0)
        assert site.place.rows() == texts(0, 1)
        assert [one.state for one in site.delivery.epochs(PIPELINE)] == ["DIVERGED"]
        done = await site.delivery.rewind(PIPELINE, "s", NO_CONSENT)
        assert (done.again, done.accepted) == (2, "")
        await site.complete()
        assert not site.sink().accepted
    assert site.place.rows() == texts(0, 1, 2, 3, 4)
    async with site.running():
        await site.complete()
    assert site.place.rows() == texts(0, 1, 2, 3, 4)


async def test_a_sink_that_has_lost_everything_gets_everything_again(site: Site) -> None:
    async with site.running():
        await site.complete()
    site.place.copy("empty")
    async with site.running():
        await site.deliver(0, 1)
    site.place.restore("empty")
    async with site.running():
        await site.refused()
        assert (await site.delivery.rewind(PIPELINE, "s", NO_CONSENT)).again == 2
        await site.complete()
    assert site.place.rows() == texts(0, 1)


async def test_a_gap_that_cannot_be_filled_must_be_accepted(site: Site) -> None:
    async with site.running(SETTINGS):
        await site.deliver(0, 1)
    site.place.copy("older")
    async with site.running(SETTINGS):
        await site.deliver(2, 3)
        records = site.stage.scene.coordinator.deliveries.records
        await site.stage.scene.until(lambda: records.begin("pipeline/p/out") == records.end("pipeline/p/out"))
    site.place.restore("older")
    async with site.running():
        await site.refused()
        for consent in (NO_CONSENT, DUPLICATES):
            with pytest.raises(
                PipelineError, match=r"is older .* what it lacks cannot be delivered again from the output"
            ) as caught:
                await site.delivery.rewind(PIPELINE, "s", consent)
            assert caught.value.hint.endswith("penstock sink rewind s --pipeline p --accept-gap")
        assert (await site.delivery.rewind(PIPELINE, "s", GAP)).accepted == "gap"
        await site.merge(4)
        await site.complete()
    assert site.place.rows() == texts(0, 1, 4)
    async with site.running():
        await site.complete()
        (accepted,) = site.sink().accepted
        assert (accepted.what, accepted.by, accepted.time_us) == ("gap", "ada", 7)


async def test_a_worker_older_than_its_sink_does_not_repeat_silently(site: Site) -> None:
    async with site.running():
        await site.deliver(0, 1)
    site.copy_worker("older")
    async with site.running():
        await site.deliver(2, 3)
    site.restore_worker("older", merged=2)
    async with site.running():
        sentence = await site.refused()
        assert "sink s of pipeline p is newer than the worker's data: the sink has " in sentence
        assert "the ledger has epoch 1 " in sentence
        await site.merge(2)
        for consent in (NO_CONSENT, GAP):
            with pytest.raises(PipelineError, match=r"is newer .* rows may arrive at it twice") as caught:
                await site.delivery.rewind(PIPELINE, "s", consent)
            assert caught.value.hint.endswith("penstock sink rewind s --pipeline p --accept-duplicates")
        assert site.place.rows() == texts(0, 1, 2, 3)
        assert (await site.delivery.rewind(PIPELINE, "s", DUPLICATES)).accepted == "duplicates"
        await site.complete()
    assert site.place.rows() == texts(0, 1, 2, 3, 2)
    async with site.running():
        await site.deliver(3)
        (accepted,) = site.sink().accepted
        assert accepted.what == "duplicates"


async def test_a_worker_that_has_lost_everything_does_not_repeat_silently(site: Site) -> None:
    async with site.running():
        await site.complete()
    site.copy_worker("empty")
    async with site.running():
        await site.deliver(0)
    site.restore_worker("empty", merged=0)
    async with site.running():
        await site.refused()
    assert site.place.rows() == texts(0)


async def test_worker_and_sink_of_the_same_copy_continue(site: Site) -> None:
    async with site.running():
        await site.deliver(0, 1)
    site.place.copy("older")
    site.copy_worker("older")
    async with site.running():
        await site.deliver(2, 3)
    site.place.restore("older")
    site.restore_worker("older", merged=2)
    async with site.running():
        await site.deliver(2)
    assert site.place.rows() == texts(0, 1, 2)


async def test_a_sink_that_matches_the_ledger_is_not_rewound(site: Site) -> None:
    async with site.running():
        await site.deliver(0)
        with pytest.raises(PipelineError, match="agrees with the ledger: there is nothing to rewind"):
            await site.delivery.rewind(PIPELINE, "s", GAP)


async def test_a_sink_moved_to_an_empty_destination_continues_there(site: Site) -> None:
    async with site.running():
        await site.complete()
    site.place.copy("empty")
    async with site.running():
        await site.deliver(0)
    site.place.restore("empty")
    site.url = "memory:elsewhere"
    async with site.running():
        if isinstance(site.place, ProgramPlace):  # it accepts only message ids that follow what it has
            await site.refused()
            return
        await site.deliver(1)
    assert site.place.rows() == texts(1)


async def test_parked_epochs_are_not_delivered_again(site: Site) -> None:
    async with site.running():
        await site.deliver(0)
    site.place.copy("older")
    async with site.running():
        await site.delivery.stop()
        await site.merge(1)
        await site.stage.scene.coordinator.deliveries.park(PIPELINE, "s", 1)
    async with site.running():
        await site.deliver(2)
    site.place.restore("older")
    async with site.running():
        await site.refused()
        with pytest.raises(PipelineError, match="what it lacks cannot be delivered again from the output"):
            await site.delivery.rewind(PIPELINE, "s", NO_CONSENT)
