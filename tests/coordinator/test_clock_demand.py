"""The demand for clock marks: running pipelines with open windows demand them of everything they read."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.coordinator.open_windows import Demand
from penstock.coordinator.settings import Connectors, SourceTimes
from penstock.protocol.api.pipelines import BucketNumbers, LoadState
from tests.coordinator.scene import Scene, opened

SECOND = 1_000_000


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened() as running:
        running.create("connector/s/0", "connector/t/0")
        yield running


async def run_epoch(scene: Scene, name: str, source: str | list[str], state: LoadState | None, **more: Any) -> None:
    """Start a pipeline and merge one epoch; `state` is what its control rows report."""
    await scene.start(name, source, **more)
    start = await scene.initial(name)
    await scene.cut(start, name, state=state)
    await scene.merge(0, name=name)


def report(
    scene: Scene, name: str, next_time: int | None, epoch: int = 0, operator: str = "w", bucket: int = 0
) -> None:
    zero = dict.fromkeys(("open_windows", "keys", "state_bytes", "late_kept", "late_dropped"), 0)
    waiting = 0 if next_time is None else 1
    numbers = BucketNumbers(bucket=bucket, **zero, waiting=waiting, first_end=next_time, next_time=next_time)
    scene.coordinator.windows.report(name, scene.generation(name), operator, epoch, [numbers])


def first_ends(*seconds: int) -> Demand:
    return Demand(frozenset(second * SECOND for second in seconds))


def demands(scene: Scene) -> dict[str, Demand]:
    return scene.coordinator.clock_demand.by_source()


async def test_a_pipeline_without_windows_demands_no_clock_marks(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", None)
    assert demands(scene) == {}


async def test_the_demand_is_the_first_open_window_end_of_each_pipeline(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "reported")
    report(scene, "p", 30 * SECOND)
    report(scene, "p", 20 * SECOND, bucket=1)
    report(scene, "p", None, operator="other")
    assert demands(scene) == {"s": first_ends(20)}
    await run_epoch(scene, "q", "s", "reported")
    report(scene, "q", 10 * SECOND)
    assert demands(scene) == {"s": first_ends(10, 20)}, "whichever of them lags"
    report(scene, "q", None, epoch=1)
    report(scene, "p", None, epoch=1)
    report(scene, "p", None, epoch=1, bucket=1)
    assert demands(scene) == {}, "nothing is open any more"


async def test_without_a_report_of_the_last_epoch_the_demand_is_unknown(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await scene.start("p", "s")
    start = await scene.initial("p")
    assert demands(scene) == {}
    at = (await scene.cut(start, "p", state="reported")).offset
    assert demands(scene) == {}, "nothing was completed: nothing can be open"
    await scene.merge(0)
    assert demands(scene) == {"s": Demand(is_unknown=True)}, "its report was lost"
    report(scene, "p", None)
    assert demands(scene) == {}
    await scene.reopen()
    assert demands(scene) == {}, "nobody has been heard of"
    await scene.cut(at, "p", state="reported")
    assert demands(scene) == {"s": Demand(is_unknown=True)}, "the worker was started again"


async def test_with_sparks_own_operators_the_demand_is_always_unknown(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "unreported")
    assert demands(scene) == {"s": Demand(is_unknown=True)}


async def test_the_status_says_that_windows_may_be_open_if_they_are_not_reported(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "unreported")
    text = scene.status("p").open_windows_text()
    assert text is not None
    assert text.startswith("p: windows may be open, waiting for ")
    await run_epoch(scene, "q", "s", "reported")
    report(scene, "q", None)
    assert scene.status("q").open_windows_text() is None


async def test_only_sources_without_clock_marks_must_end_to_close_open_windows(scene: Scene) -> None:
    times = {
        "s": SourceTimes(has_arrival_times=True),
        "t": SourceTimes(follows_clock_when_idle=True, idle_timeout_seconds=5),
        "u": SourceTimes(idle_timeout_seconds=5),
    }
    scene.connectors = Connectors(times=lambda source: times[source])
    await scene.reopen()
    scene.create("connector/u/0")
    for source in times:
        await scene.ingest(f"connector/{source}/0", {1: 5})
    for name, sources in {"p": ["s", "t"], "q": ["s", "t", "u"]}.items():
        await run_epoch(scene, name, sources, "reported")
        report(scene, name, 30 * SECOND)
    p, q = scene.status("p"), scene.status("q")
    assert (p.open_windows_sources, p.open_windows_by_clock) == ([], True)
    assert (q.open_windows_sources, q.open_windows_by_clock) == (["u"], False)


async def test_a_pipeline_that_is_not_running_demands_no_clock_marks(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "reported")
    report(scene, "p", 30 * SECOND)
    scene.coordinator.lifecycle.heartbeat("p", scene.generation(), stopped=True)
    assert demands(scene) == {}


async def test_a_pipeline_that_reads_an_output_demands_clock_marks_of_the_sources_upstream(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await scene.ingest("connector/t/0", {1: 5})
    await run_epoch(scene, "a", "s", None)
    await run_epoch(scene, "b", "t", None)
    await scene.start("c", ["pipeline:a/out", "pipeline:b/out"])
    start = await scene.initial("c")
    await scene.cut(start, "c", state="reported")
    await scene.merge(0, name="c")
    report(scene, "c", 7 * SECOND)
    assert demands(scene) == {"s": first_ends(7), "t": first_ends(7)}


async def test_an_operator_that_the_next_generation_lacks_is_forgotten(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "reported")
    report(scene, "p", 30 * SECOND, operator="old")
    await scene.start("p", "s")
    await scene.cut((await scene.cut(scene_start(scene), "p", state="reported")).offset, "p", state="reported")
    assert demands(scene) == {"s": first_ends(30)}, "what it has left open is open"
    report(scene, "p", 40 * SECOND, epoch=1, operator="new")
    assert demands(scene) == {"s": first_ends(40)}


async def test_a_generation_that_reruns_older_epochs_does_not_change_the_demand(scene: Scene) -> None:
    await scene.ingest("connector/s/0", {1: 5})
    await run_epoch(scene, "p", "s", "reported")
    report(scene, "p", 30 * SECOND, epoch=10)
    await scene.start("p", "s")
    report(scene, "p", 20 * SECOND, epoch=8)
    summary = scene.coordinator.windows.summary("p")
    assert (summary.epoch, summary.next_time) == (10, 30 * SECOND)
    report(scene, "p", 40 * SECOND, epoch=10)
    assert scene.coordinator.windows.summary("p").next_time == 40 * SECOND


def scene_start(scene: Scene) -> Any:
    from penstock.coordinator.cuts import _offset

    return _offset(scene.coordinator._shared.state.pipelines["p"], "in", 0)
