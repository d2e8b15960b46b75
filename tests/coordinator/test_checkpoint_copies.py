"""A checkpoint older or newer than the ledger: the pipeline continues without a gap or duplicates, or is refused."""

import copy
from dataclasses import replace

import pytest

from penstock.core.errors import PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import InputOffset, Staged
from tests.coordinator.scene import SETTINGS, Scene, raw

KEPT = replace(SETTINGS, truncate_seconds=10_000.0)
OUT = "pipeline/p/out"


async def run_epoch(scene: Scene, at: InputOffset, value: bytes = b"") -> InputOffset:
    """What Spark does for an epoch, starting at the checkpoint's offset. With a value: after new input."""
    if value:
        await scene.append("connector/s/0", raw(value))
    end = (await scene.cut(at)).offset
    assert end.epoch is not None
    generation = scene.generation("p")
    staged = f"staging/p/{generation}/{end.epoch}/0-0/out"
    data = raw(b"out of %d" % end.epoch)
    await scene.append(staged, data)
    await scene.coordinator.merger.merge("p", generation, end.epoch, [Staged("out", staged, len(data))])
    return end


async def run_epochs(scene: Scene, at: InputOffset, count: int) -> list[InputOffset]:
    found = [at]
    for number in range(count):
        found.append(await run_epoch(scene, found[-1], b"input %d" % number))
    return found[1:]


async def test_an_older_checkpoint_reruns_epochs_without_effect_while_their_input_is_stored() -> None:
    scene = Scene(settings=KEPT)
    await scene.open()
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start()
    offsets = await run_epochs(scene, await scene.initial(), 8)
    length = scene.store.length(OUT)
    await scene.start()
    again = offsets[1]
    for expected in offsets[2:]:
        again = await run_epoch(scene, again)
        assert again == expected
    assert scene.store.length(OUT) == length
    await run_epoch(scene, again, b"new")
    assert scene.store.length(OUT) > length
    await scene.close()


async def test_an_older_checkpoint_is_refused_if_the_input_after_it_was_removed() -> None:
    scene = Scene()
    await scene.open()
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start()
    offsets = await run_epochs(scene, await scene.initial(), 8)
    await scene.until(lambda: scene.store.info("connector/s/0").start > offsets[1].segments["connector/s/0"])
    await scene.start()
    refused = "the checkpoint of pipeline 'p' is older than the ledger: it is at epoch 1, Spark has committed epoch 6"
    with pytest.raises(PipelineError, match=refused) as caught:
        await scene.cut(offsets[1])
    assert caught.value.hint.endswith("penstock pipeline reset p")
    with pytest.raises(PipelineError, match=refused):
        await scene.coordinator.cuts.reading("p", scene.generation("p"), "in", offsets[1], offsets[2])
    assert (await scene.cut(offsets[-1])).offset == offsets[-1]
    await scene.close()


async def test_a_checkpoint_that_is_newer_than_the_ledger_is_refused() -> None:
    scene = Scene(settings=KEPT)
    await scene.open()
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start()
    old = await run_epochs(scene, await scene.initial(), 2)
    await scene.close()
    copied = copy.deepcopy(scene.files)
    await scene.open()
    await scene.start()
    new = await run_epochs(scene, old[-1], 3)
    await scene.close()

    restored = Scene(copied, KEPT)
    await restored.open()
    await restored.start()
    refused = (
        "the checkpoint of pipeline 'p' is newer than the ledger: epoch 4 is not among those that are kept: -1 to 1"
    )
    for call in (
        restored.cut(new[-1]),
        restored.coordinator.cuts.reading("p", restored.generation("p"), "in", new[0], new[1]),
    ):
        with pytest.raises(PipelineError, match=refused.replace("epoch 4", r"epoch \d")) as caught:
            await call
        assert "Restore the worker's newest data, or the checkpoint from a copy of the same time" in caught.value.hint
        assert caught.value.hint.endswith("penstock pipeline reset p")
    await run_epoch(restored, old[-1], b"goes on")
    await restored.close()


async def test_the_checkpoint_in_a_backup_ends_with_the_last_merged_epoch_and_continues_from_there(
    scene: Scene,
) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start()

    def epoch() -> int:
        return scene.coordinator.deliveries.state.pipelines["p"].checkpoint_epoch

    assert epoch() == NO_EPOCH
    at = await scene.initial()
    await scene.cut(at)
    assert epoch() == NO_EPOCH, "a cut alone has no effect outside"
    offsets = await run_epochs(scene, at, 3)
    await scene.append("connector/s/0", raw(b"more"))
    planned = (await scene.cut(offsets[-1])).offset
    assert epoch() == offsets[-1].epoch, "the epoch that is planned is not merged"
    await scene.start()  # with a checkpoint that has no later epoch: it gets the same cut again
    assert (await scene.cut(offsets[-1])).offset == planned


async def test_with_sparks_own_sinks_the_checkpoint_in_a_backup_ends_with_the_last_known_epoch(
    scene: Scene,
) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start(outputs=[])
    pipelines = scene.coordinator.deliveries
    first = (await scene.cut(await scene.initial())).offset
    assert pipelines.state.pipelines["p"].checkpoint_epoch == NO_EPOCH
    await scene.ingest("connector/s/0", {1: 6})
    second = (await scene.cut(first)).offset
    assert pipelines.state.pipelines["p"].checkpoint_epoch == second.epoch
