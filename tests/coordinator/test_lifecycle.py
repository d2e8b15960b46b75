"""Generations, incarnations, and what remains of a pipeline when it ends."""

import pytest

from penstock.core.errors import Fenced, LimitExceeded, PipelineError, RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import AtSegments, InputSpec
from tests.coordinator.scene import Scene, opened, raw

A = "connector/s/0"


async def test_every_start_gets_a_higher_generation_and_a_repeated_request_the_same(scene: Scene) -> None:
    first = await scene.start(request="one")
    assert (first.generation, first.incarnation, first.epoch) == (1, 1, NO_EPOCH)
    assert (first.segment_port, first.tls) == (7101, False)
    assert await scene.start(request="one") == first
    assert (await scene.start(request="two")).generation == 2
    await scene.reopen()
    assert (await scene.start(request="two")).generation == 2
    assert (await scene.start(request="three")).generation == 3


async def test_a_repeated_start_adds_inputs(scene: Scene) -> None:
    await scene.start(request="one", inputs={"x": InputSpec(["s"])}, outputs=None)
    await scene.start(request="one", inputs={"y": InputSpec(["t"])}, outputs=None)
    assert scene.status().inputs == {"x": ["s"], "y": ["t"]}
    # The request does not say that x is gone.
    await scene.start(request="two", inputs={"y": InputSpec(["t"])}, outputs=None)
    assert set(scene.status().inputs) == {"x", "y"}
    await scene.start(request="three", inputs={"y": InputSpec(["t"])}, outputs=["out"])
    assert set(scene.status().inputs) == {"y"}


async def test_a_start_without_a_checkpoint_is_refused_if_the_ledger_has_epochs(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start(fresh=True)
    start = await scene.initial()
    await scene.cut(start)
    await scene.start(fresh=True)
    assert await scene.initial() == start, "a cut alone is no epoch that was done"
    await scene.epoch(start, 0, b"1")
    with pytest.raises(PipelineError, match="has no checkpoint, but has committed epoch 0") as caught:
        await scene.start(fresh=True)
    assert "penstock pipeline reset p" in caught.value.hint
    assert (await scene.start(fresh=False)).epoch == 0


async def test_the_first_epoch_may_be_rerun_without_a_checkpoint_until_the_second_is_merged(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    end = await scene.epoch(start, 0, b"1")
    assert await scene.initial() == start
    await scene.ingest(A, {1: 6})
    await scene.epoch(end, 1, b"2")
    with pytest.raises(PipelineError, match="has no checkpoint, but has committed epoch 1"):
        await scene.initial()


async def test_with_sparks_own_sinks_a_start_without_a_checkpoint_is_refused_once_an_epoch_is_proved(
    scene: Scene,
) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start(outputs=[])
    first = (await scene.cut(await scene.initial())).offset
    await scene.coordinator.lifecycle.complete("p", 1, 0)
    await scene.initial()
    await scene.ingest(A, {1: 6})
    await scene.cut(first)
    await scene.coordinator.lifecycle.complete("p", 1, 1)
    with pytest.raises(PipelineError, match="has no checkpoint"):
        await scene.initial()


async def test_a_reset_starts_from_scratch_and_fences_the_running_driver(scene: Scene) -> None:
    end = await scene.ingest(A, {1: 5})
    await scene.start()
    at = await scene.epoch(await scene.initial(), 0, b"1")
    await scene.coordinator.lifecycle.reset("p")
    with pytest.raises(Fenced):
        await scene.cut(at, generation=1)
    started = await scene.start(fresh=True, starting="latest")
    assert (started.incarnation, started.epoch) == (2, NO_EPOCH)
    again = await scene.initial()
    assert again.segments == {A: end}
    with pytest.raises(
        PipelineError, match="the checkpoint of pipeline 'p' belongs to other data: it is of incarnation 1"
    ):
        await scene.cut(at)
    await scene.ingest(A, {1: 6})
    await scene.epoch(again, 0, b"2")
    assert scene.output() == b"12"


async def test_a_dropped_pipeline_is_forgotten_with_what_it_has_staged(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.epoch(await scene.initial(), 0, b"1")
    await scene.stage(b"2", 1)
    await scene.coordinator.lifecycle.drop("p")
    await scene.durable()
    assert scene.coordinator.pipelines() == []
    assert scene.names("staging/") == []
    assert scene.output() == b"1"
    await scene.coordinator.lifecycle.drop("p")
    with pytest.raises(Fenced, match="is not registered"):
        scene.coordinator.lifecycle.heartbeat("p", 1, stopped=False)
    with pytest.raises(PipelineError, match="not found"):
        await scene.coordinator.lifecycle.reset("p")


async def test_the_output_of_a_dropped_pipeline_is_deleted_on_request_unless_it_is_read(scene: Scene) -> None:
    await scene.start(outputs=["out", "late"])
    await scene.start("reader", "pipeline:p/late")
    with pytest.raises(PipelineError, match="is read by pipeline 'reader'"):
        await scene.coordinator.lifecycle.drop("p", outputs=True)
    await scene.coordinator.lifecycle.drop("reader")
    await scene.start("early", "pipeline:p/more")
    await scene.append("pipeline/p/more", b"1")
    with pytest.raises(PipelineError, match="is read by pipeline 'early'"):  # even though it has read nothing of it yet
        await scene.coordinator.lifecycle.drop("p", outputs=True)
    await scene.coordinator.lifecycle.drop("early")
    await scene.coordinator.lifecycle.drop("p", outputs=True)
    assert scene.names("pipeline/p/") == []
    assert scene.journal.durable == scene.journal.end


async def test_an_invalid_pipeline_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {str(number): InputSpec(["s"]) for number in range(101)}
    for wrong in (
        {"name": "a/b"},
        {"name": ""},
        {"outputs": ["a/b"]},
        {"source": "connector/s/0"},
        {"source": "segment:staging/p"},
        {"inputs": many},
        {"inputs": {"a b": InputSpec(["s"])}},
        {"source": [f"s{number}" for number in range(1001)]},
        {"source": "s" * 1001},
        {"request": "r" * 1001},
        {"starting": AtSegments({f"connector/s/{number}": 0 for number in range(1001)})},
    ):
        with pytest.raises(RequestError):
            await scene.start(**wrong)
    monkeypatch.setattr("penstock.coordinator.machine.apply.PIPELINES_MAX", 1)
    await scene.start("one")
    with pytest.raises(LimitExceeded):
        await scene.start("two")


async def test_a_fork_reads_what_follows_the_last_committed_epoch_also_after_a_restart(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    at = await scene.epoch(await scene.initial(), 0, b"1")
    assert (await scene.coordinator.lifecycle.fork("new", "p")).epoch == 0
    await scene.ingest(A, {1: 6})
    await scene.epoch(at, 1, b"2")
    await scene.reopen()
    await scene.start("new", fresh=True)
    first = await scene.initial("new")
    assert (first.segments, first.watermark) == (at.segments, at.watermark)
    await scene.epoch(first, 0, b"2", name="new")
    assert (scene.output("new"), scene.output("p")) == (b"2", b"12")
    with pytest.raises(RequestError, match="not a valid"):
        await scene.coordinator.lifecycle.fork("no/name", "p")


class TestSweeping:
    async def test_a_new_generation_sweeps_what_older_ones_staged(self, scene: Scene) -> None:
        await scene.start()
        await scene.stage(b"1", 0)
        await scene.append("staging/p/-/0/0-0/out", b"1")
        await scene.append("staging/other/1/0/0-0/out", b"1")
        await scene.start()
        await scene.durable()
        assert scene.names("staging/") == ["staging/other/1/0/0-0/out"]

    async def test_segments_staged_by_fenced_tasks_are_swept(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        await scene.start()
        first = await scene.epoch(await scene.initial(), 0, b"1")
        await scene.ingest(A, {1: 6})
        await scene.epoch(first, 1, b"1")
        useless = ["staging/p/1/7/0-0/out", "staging/p/2/0/0-9/out", "staging/p/-/0/0-9/out", "staging/p/what"]
        useful = ["staging/p/-/2/0-0/out", "staging/p/2/2/0-0/out", "staging/unknown/1/0/0-0/out"]
        for name in (*useless, *useful):
            await scene.append(name, raw(b"1"))
        await scene.until(lambda: not set(scene.names("staging/")) & set(useless))
        assert scene.names("staging/") == useful

    async def test_what_a_crash_has_left_is_swept_at_the_start(self) -> None:
        async with opened(sweep_seconds=1000) as scene:
            await scene.start()
            await scene.start()
            await scene.append("staging/p/1/0/0-0/out", b"1")
            await scene.reopen()
            assert scene.names("staging/") == []

    async def test_segments_staged_for_a_pipeline_that_never_registers_are_swept(self) -> None:
        async with opened(orphan_seconds=0.03) as scene:
            await scene.append("staging/unknown/1/0/0-0/out", b"1")
            await scene.until(lambda: not scene.names("staging/"))
