"""Rounds: each epoch once, in order, at all voting sinks or at none; then at the others."""

import asyncio
from collections import Counter

import pytest

from penstock.connectors.sink_api import SinkLost
from penstock.coordinator.deliveries import parked_port
from penstock.coordinator.machine.state import Pipeline
from penstock.core.errors import PipelineError
from penstock.delivery.sink_slot import SlotState, SlotStatus
from penstock.protocol.stored.dead_letters import dead_letters_in
from penstock.protocol.stored.names import output_segment
from penstock.testing.memory_files import MemoryFiles
from tests.coordinator.scene import STORE
from tests.delivery.memory_sink import Refuse, Script
from tests.delivery.stage import PIPELINE, Stage, values

STEPS = [
    "before open",
    "after open",
    "in the data",
    "before phase 1",
    "vote",
    "after the vote",
    "before phase 2",
    "after phase 2",
]


def failing(step: str, times: int, error: type[Exception] = SinkLost) -> Script:
    """Fail at this step, this many times."""
    left = [times]

    def script(now: str) -> None:
        if now == step and left[0]:
            left[0] -= 1
            raise error(f"lost {now}")

    return script


def everything(upto: int) -> list[bytes]:
    return [value for epoch in range(upto) for value in values(epoch)]


async def test_each_epoch_is_committed_once_and_in_order(stage: Stage) -> None:
    await stage.bind(voting="a b")
    for _ in range(5):
        await stage.put_out()
    await stage.delivered()
    assert stage.disks["a"].values == stage.disks["b"].values == everything(5)
    assert stage.disks["a"].epochs == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("lost", ["a", "b"])
async def test_a_sink_that_is_lost_at_any_step_repeats_nothing_and_lacks_nothing(
    stage: Stage, step: str, lost: str
) -> None:
    stage.scripts[lost] = failing(step, 2)
    await stage.bind(voting="a b")
    for _ in range(3):
        await stage.put_out()
    await stage.delivered()
    assert stage.disks["a"].values == stage.disks["b"].values == everything(3)


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_that_dies_at_any_step_repeats_nothing_and_lacks_nothing(stage: Stage, step: str) -> None:
    await stage.bind(voting="a b", following="c")
    stage.scripts["a"] = failing(step, 1)
    await stage.put_out()
    await stage.crash()
    await stage.put_out()
    await stage.crash()
    await stage.delivered()
    assert stage.disks["a"].values == stage.disks["b"].values == everything(2)
    assert [*dict.fromkeys(name for name, _ in stage.taken["c"])] == ["p:1:0", "p:1:1"]


async def test_two_sinks_have_the_same_epochs_even_if_one_votes_no_every_third_time(stage: Stage) -> None:
    asked: Counter[str] = Counter()
    agreed: list[bool] = []

    def script(step: str) -> None:
        asked[step] += 1
        if step == "vote":
            agreed.append(stage.disks["a"].epochs == stage.disks["b"].epochs)
            if asked[step] % 3 == 0:
                raise Refuse

    stage.scripts["b"] = script
    await stage.bind(voting="a b")
    for _ in range(8):
        await stage.put_out()
    await stage.delivered()
    assert stage.disks["a"].values == stage.disks["b"].values == everything(8)
    assert asked["vote"] == 11
    assert all(agreed)


async def test_an_epoch_without_bytes_for_a_sink_needs_no_round(stage: Stage) -> None:
    asked: Counter[str] = Counter()
    stage.scripts["a"] = lambda step: asked.update([step])
    await stage.bind(voting="a")
    await stage.put_out({"late": [b"x"]})
    await stage.put_out({})
    await stage.put_out()
    await stage.delivered()
    assert asked["vote"] == 1
    assert stage.disks["a"].epochs == [2]


async def test_the_decision_is_durable_before_it_is_sent_to_a_sink(stage: Stage) -> None:
    def script(step: str) -> None:
        if step == "vote":
            stage.scene.paused = True

    stage.scripts["a"] = script
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.scene.until(lambda: bool(stage.disks["a"].in_doubt))
    await stage.scene.until(lambda: stage.scene.journal.end > stage.scene.journal.durable)
    assert not stage.disks["a"].committed
    stage.scene.paused = False
    await stage.delivered()
    assert stage.disks["a"].values == everything(1)


async def test_no_sink_is_asked_to_vote_before_the_attempt_is_durable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    deliveries = stage.scene.coordinator.deliveries
    begin = deliveries.attempt

    def attempt(name: str, seen: Pipeline) -> int:
        stage.scene.paused = True
        return begin(name, seen)

    monkeypatch.setattr(deliveries, "attempt", attempt)
    stage.scripts["a"] = steps.append
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.scene.until(lambda: "in the data" in steps)
    await asyncio.sleep(0.05)
    assert "before phase 1" not in steps
    stage.scene.paused = False
    await stage.delivered()
    assert "vote" in steps


async def test_non_voting_sinks_get_an_epoch_after_the_decision_and_are_retried_until_they_have_it(
    stage: Stage,
) -> None:
    stage.scripts["a"] = failing("vote", 2, Refuse)
    seen: list[list[int]] = []
    failure = failing("after deliver", 1)

    def follow(step: str) -> None:
        seen.append(stage.disks["a"].epochs)
        failure(step)

    stage.scripts["c"] = follow
    await stage.bind(voting="a", following="c")
    for _ in range(3):
        await stage.put_out()
    await stage.delivered()
    assert [name for name, _ in stage.taken["c"]] == ["p:1:0", "p:1:0", "p:1:1", "p:1:2"]
    assert [rows for _, rows in stage.taken["c"]][1:] == [values(0), values(1), values(2)]


async def test_rows_that_a_non_voting_sink_refuses_are_dead_letters_once_although_it_fails_and_the_worker_is_killed(
    stage: Stage,
) -> None:
    stage.scripts["c"] = failing("after deliver", 2)
    await stage.bind(following="c")
    await stage.put_out({"out": [b"a", b"refused 1", b"b", b"refused 2"]})
    await stage.delivered()
    await stage.put_out({"out": [b"refused 3"]})
    await stage.delivered()
    await stage.crash()
    await stage.put_out({"out": [b"c"]})
    await stage.delivered()
    assert [rows for _, rows in stage.taken["c"]][2:] == [[b"a", b"b"], [], [b"c"]]
    segment = stage.scene.store.read(output_segment(PIPELINE, parked_port("c")), 0, 1 << 20)
    assert [(one.event.payload, one.reason) for one in dead_letters_in(segment, 0)] == [
        (b"refused 1", "row 1 is refused"),
        (b"refused 2", "row 3 is refused"),
        (b"refused 3", "row 0 is refused"),
    ]
    assert not stage.scene.store.segments("coordinator/parking/")


async def test_a_sink_that_has_refused_rows_is_not_waited_for_once_it_has_the_epoch(stage: Stage) -> None:
    await stage.bind(following="c")
    await stage.put_out({"out": [b"a", b"refused 1"]})
    await stage.delivered()
    assert stage.delivery is not None
    assert stage.delivery._status(PIPELINE, "c").silent_seconds is None


async def test_refused_rows_that_cannot_be_read_again_make_the_delivery_wait_and_not_end(stage: Stage) -> None:
    """The row is damaged whenever the sink has received it, three times."""
    failures: list[int] = []
    delivery = stage.delivery
    assert delivery is not None

    def damage(now: str) -> None:
        if now == "before deliver":
            failures.append(delivery._status(PIPELINE, "c").failures)
        elif len(failures) <= 3:
            swap(b"refused 1", b"damaged 1")

    def swap(old: bytes, new: bytes) -> None:
        assert isinstance(stage.scene.files, MemoryFiles)
        for content in stage.scene.files._contents.values():
            if (at := content.find(old)) >= 0:
                content[at : at + len(old)] = new

    def changed(_: str, __: str, status: SlotStatus) -> None:
        if status.state is SlotState.WAITING:
            assert "refused" not in status.reason
            swap(b"damaged 1", b"refused 1")
            delivery.retry(PIPELINE)

    delivery.watchers.append(changed)
    stage.scripts["c"] = damage
    await stage.bind(following="c")
    await stage.put_out({"out": [b"a", b"refused 1"]})
    await stage.delivered()
    assert failures == [0, 1, 2, 3], "each counts, although the sink accepted the epoch each time"
    assert delivery._status(PIPELINE, "c").failures == 0
    assert [one.deaths for one in delivery._supervisor.states() if one.deaths] == []
    segment = stage.scene.store.read(output_segment(PIPELINE, parked_port("c")), 0, 1 << 20)
    assert [one.event.payload for one in dead_letters_in(segment, 0)] == [b"refused 1"]


async def test_dead_letters_that_have_no_room_make_the_delivery_wait_and_not_end(stage: Stage) -> None:
    """They need a file of their own, which the disk has no room for at first."""
    files, delivery = stage.scene.files, stage.delivery
    assert isinstance(files, MemoryFiles)
    assert delivery is not None
    reasons: list[str] = []

    def fill(now: str) -> None:
        if now == "after deliver" and not reasons:
            files._space = 0

    def changed(_: str, __: str, status: SlotStatus) -> None:
        if status.state is SlotState.WAITING:
            reasons.append(status.reason)
            files._space = None
            delivery.retry(PIPELINE)

    delivery.watchers.append(changed)
    stage.scripts["c"] = fill
    await stage.bind(following="c")
    large = b"refused" + bytes(STORE.chapter_bytes + STORE.reserve_bytes)
    await stage.put_out({"out": [b"a", large]})
    await stage.delivered()
    assert [one.partition(":")[0] for one in reasons] == ["the disk has no room"]
    assert [one.deaths for one in delivery._supervisor.states() if one.deaths] == []
    segment = stage.scene.store.read(output_segment(PIPELINE, parked_port("c")), 0, 1 << 20)
    assert [one.event.payload for one in dead_letters_in(segment, 0)] == [large]
    assert not stage.scene.store.segments("coordinator/parking/")


async def test_a_parked_epoch_is_kept_and_the_other_sinks_get_it(stage: Stage) -> None:
    delivery = stage.delivery
    assert delivery is not None
    stage.scripts["b"] = failing("vote", 10**6, Refuse)
    await stage.bind(voting="a b")
    await stage.put_out()
    first_epoch = stage.scene.output()
    await stage.put_out()
    await stage.shows("REFUSED")
    [first, second] = delivery.epochs(PIPELINE)
    assert (first.epoch, first.waiting[-1].sink, first.waiting[-1].reason) == (0, "b", "not today")
    assert (second.state, second.waiting) == ("MERGED", [])
    with pytest.raises(PipelineError, match="next epoch for sink 'b' is 0"):
        await delivery.park(PIPELINE, 1, "b")
    await delivery.park(PIPELINE, 0, None)
    await stage.scene.until(lambda: [one.epoch for one in delivery.epochs(PIPELINE)] == [1])
    stage.scripts["b"] = lambda _: None
    delivery.retry(PIPELINE)
    await stage.delivered()
    assert stage.disks["a"].values == everything(2)
    assert stage.disks["b"].values == values(1)  # from message id 0: its disk would have detected a gap
    assert stage.scene.output(port="parked.b") == first_epoch
    assert next(one for one in delivery.sinks() if one.sink == "b").parked == 1


async def test_a_removed_sink_blocks_nothing(stage: Stage) -> None:
    stage.scripts["b"] = failing("before open", 10**6)
    await stage.bind(voting="a b")
    await stage.put_out()
    await stage.shows("WAITING")
    assert stage.delivery is not None
    await stage.delivery.unbind(PIPELINE, "b")
    await stage.delivered()
    assert stage.disks["a"].values == everything(1)


async def test_a_sink_bound_later_gets_what_is_merged_from_then_on(stage: Stage) -> None:
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.bind(voting="b")
    await stage.put_out()
    await stage.delivered()
    assert (stage.disks["a"].values, stage.disks["b"].values) == (everything(2), values(1))


async def test_a_reset_pipeline_delivers_what_was_waiting_with_its_next_epoch(stage: Stage) -> None:
    stage.scripts["a"] = failing("before open", 10**6)
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.scene.coordinator.lifecycle.reset(PIPELINE)
    stage.scripts["a"] = lambda _: None
    stage.merged = 0
    await stage.put_out({"out": values(1)})
    await stage.delivered()
    assert stage.disks["a"].values == everything(2)


async def test_sinks_are_notified_of_the_end_when_the_worker_stops_cleanly(stage: Stage) -> None:
    steps: list[str] = []
    stage.scripts["a"] = steps.append
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.delivered()
    assert stage.delivery is not None
    await stage.delivery.stop()
    assert steps[-1] == "end"
