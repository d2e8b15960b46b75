"""A stream of epochs, run through the engine and the reference: they must agree on every pane and every late event."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import pyarrow as pa

from penstock.windows.aggregates import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Collect,
    Count,
    First,
    Groups,
    Last,
    Max,
    Min,
    Sum,
)
from penstock.windows.engine import Plan
from penstock.windows.kinds import LateRule, Window
from tests.windows.engine.driving import Driver, signed_hash, split
from tests.windows.reference import Event, Pane, Reference

COLLECTED = 3
BUCKETS = 3
ORDER = ("t", "number")


@dataclass(frozen=True)
class Epoch:
    """Events, and the watermark of the cut that ends it. `tasks` tasks read them, after `crashes` failed attempts."""

    events: tuple[Event, ...]
    watermark: int | None
    tasks: int = 1
    crashes: int = 0


@dataclass(frozen=True)
class Scenario:
    """Windows, and epochs with watermarks that never go back."""

    window: Window
    lateness: int
    rule: LateRule
    epochs: tuple[Epoch, ...]

    def in_units(self, unit: int) -> "Scenario":
        """The same with all times and lengths multiplied by the unit."""
        lengths = {name: length * unit for name, length in asdict(self.window).items()}
        epochs = tuple(
            replace(
                epoch,
                events=tuple(replace(event, time=event.time * unit) for event in epoch.events),
                watermark=None if epoch.watermark is None else epoch.watermark * unit,
            )
            for epoch in self.epochs
        )
        return Scenario(type(self.window)(**lengths), self.lateness * unit, self.rule, epochs)


class Spread(Aggregate):
    """A user-defined aggregate: the greatest minus the least value."""

    inputs = ("value",)

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        low, high = Min(self.inputs).add(columns, groups, count), Max(self.inputs).add(columns, groups, count)
        return pa.StructArray.from_arrays([low, high], ["low", "high"])

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        low, high = partials.flatten()
        lows, highs = Min(self.inputs).merge(low, groups, count), Max(self.inputs).merge(high, groups, count)
        return pa.StructArray.from_arrays([lows, highs], ["low", "high"])

    def result(self, partials: pa.Array) -> pa.Array:
        low, high = partials.flatten()
        return pa.compute.subtract(high, low)


def plan_of(scenario: Scenario) -> Plan:
    """All aggregates at once; the key is a text and a number."""
    return Plan(
        window=scenario.window,
        keys=("name", "shard"),
        aggregates={
            "rows": Count(),
            "values": Count(("value",)),
            "sum": Sum(("value",)),
            "min": Min(("value",)),
            "max": Max(("value",)),
            "avg": Avg(("value",)),
            "first": First(("value", *ORDER)),
            "last": Last(("value", *ORDER)),
            "some": Collect(("value", *ORDER), COLLECTED),
            "distinct": ApproxDistinct(("hash",)),
            "spread": Spread(),
        },
        schema=pa.schema(
            {"name": pa.string(), "shard": pa.int64(), "value": pa.int64(), "number": pa.int64(), "hash": pa.int64()}
        ),
        buckets=BUCKETS,
        carry=("number",),
        lateness_us=scenario.lateness,
        late_rule=scenario.rule,
    )


def check(scenario: Scenario, seed: int) -> tuple[int, int]:
    """Raises AssertionError if they differ. Returns the numbers of panes and of late events."""
    rng = random.Random(seed)
    driver = Driver(plan_of(scenario))
    reference = Reference(scenario.window, scenario.lateness, strict=scenario.rule == "strict")
    before, panes_seen, late_seen = None, 0, 0
    for epoch in scenario.epochs:
        rows = [_row(event) for event in epoch.events]
        for _ in range(epoch.crashes):
            driver.crash(split(rows, epoch.tasks, rng), epoch.watermark)
        panes, late = driver.batch(split(rows, epoch.tasks, rng), epoch.watermark)
        expected_panes, expected_late = reference.epoch(epoch.events, before, epoch.watermark)
        assert sorted(map(_comparable, panes), key=repr) == sorted(map(_expected, expected_panes), key=repr)
        assert sorted(_late(row) for row in late) == sorted(_expected_late(event, before) for event in expected_late)
        panes_seen, late_seen = panes_seen + len(panes), late_seen + len(late)
        _check_stats(driver, reference, late_seen)
        _check_waiting(driver, reference, epoch.watermark)
        before = epoch.watermark
    return panes_seen, late_seen


def _check_stats(driver: Driver, reference: Reference, late: int) -> None:
    """The state contains what the reference does; closed sessions may stay in it until their neighbours are closed."""
    held = sum(len(windows) for windows in reference.kept.values())
    keys = sum(each.keys for each in driver.stats)
    assert keys >= held
    assert sum(each.late_kept for each in driver.stats) == late
    assert sum(each.state_bytes for each in driver.stats) == sum(
        len(data) for state in driver.states for data in state.data.values()
    )


def _check_waiting(driver: Driver, reference: Reference, watermark: int | None) -> None:
    """How many windows have not fired, when the first of them ends, and when something happens next."""
    kept = [each for windows in reference.kept.values() for each in windows]
    ends = [each.end for each in kept if watermark is None or each.end > watermark]
    assert sum(each.waiting for each in driver.stats) == len(ends)
    assert _least(each.first_end for each in driver.stats) == min(ends, default=None)
    due = _least(each.next_time for each in driver.stats)
    assert (due is None) <= (not kept), "what is kept is not forgotten"
    if due is not None:
        assert watermark is None or due > watermark, "what was due has happened"
        assert due <= min(ends, default=due)


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _row(event: Event) -> dict[str, Any]:
    name, shard = event.key
    return {
        "t": event.time,
        "name": name,
        "shard": shard,
        "value": event.value,
        "number": event.number,
        "hash": signed_hash(event.value),
    }


def _comparable(pane: dict[str, Any]) -> dict[str, Any]:
    replaces = {(each["window_start"], each["window_end"]) for each in pane.get("replaces", ())}
    assert len(replaces) == len(pane.get("replaces", ()))
    return pane | {"replaces": sorted(replaces)}


def _expected(pane: Pane) -> dict[str, Any]:
    name, shard = pane.key
    values = [event.value for event in pane.events if event.value is not None]
    return {
        "name": name,
        "shard": shard,
        "window_start": pane.start,
        "window_end": pane.end,
        "pane": pane.kind,
        "revision": pane.revision,
        "rows": len(pane.events),
        "values": len(values),
        "sum": sum(values) if values else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "avg": float(Fraction(sum(values), len(values))) if values else None,
        "first": pane.events[0].value,
        "last": pane.events[-1].value,
        "some": values[:COLLECTED],
        "distinct": len(set(values)),
        "spread": max(values) - min(values) if values else None,
        "replaces": sorted(pane.replaces),
    }


def _late(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["number"], row["t"], row["watermark"], row["behind"]


def _expected_late(event: Event, before: int | None) -> tuple[int, int, int, int]:
    assert before is not None
    return event.number, event.time, before, before - event.time
