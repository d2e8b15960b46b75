"""The plan that a query's checkpoint belongs to: the loads it reads and its stateful operators. It is known before
anything is started, so that a changed pipeline can be compared with its checkpoint.

It contains what state depends on: keys, aggregate functions, windows, join keys. Filters, projections and everything
after the stateful operators may differ. Our windows take over state that was written with other aggregates or another
lateness; everything else has to be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.core.errors import RequestError, UnreadableFormat
from penstock.spark.run.takeover import StoredAggregate, matched

FORMAT = 3
"""The format version of a checkpoint's companion. Format 1 has no details of windows, and one plan. Format 2 has other
facts of Spark's operators, which are not compared.
"""

_START_OVER = (
    "Start {name} from scratch: penstock pipeline reset {name}. Or remove the file if you know that the pipeline still "
    "fits its state: then they are not compared."
)

_COMPATIBLE = (
    "You may change filters, computed columns, decoding, sinks, triggers and limits, add or remove sources of an "
    "existing input, in windows add and remove aggregates, and change allowed_lateness, late, late_rule and "
    "bucket_bytes_max, and add and remove columns of events that windows.ordered buffers. To start {name} from scratch "
    "instead, stop it and run: penstock pipeline reset {name}. Or give the changed pipeline a new name, and start that "
    "where {name} is: penstock pipeline fork {name} NEW"
)
_UNKNOWN_AGGREGATES = "its state was written by an earlier version: run the unchanged pipeline for an epoch first"

AGGREGATES, LATENESS = "aggregates", "allowed_lateness"
"""The facts of windows that may change under existing state."""

ORDERED = "ordered"
"""The name of the operator of `windows.ordered`. Columns may be added to its state, and removed from it."""

_COLUMN = "column "


def column_fact(name: str) -> str:
    """The fact that has the type of a column that an operator stores."""
    return _COLUMN + name


@dataclass(frozen=True, slots=True)
class WindowState:
    """What windows compare in detail to take over state."""

    name: str
    """The operator's name."""
    aggregates: Mapping[str, str]
    """Result → what it computes."""
    lateness_us: int
    closed_to_us: int | None = None
    """The end of the last windows that stay closed although the lateness has become longer."""

    @property
    def stored(self) -> list[StoredAggregate]:
        return [StoredAggregate(*one) for one in self.aggregates.items()]


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """`facts`: what its state depends on, in readable form."""

    name: str
    facts: Mapping[str, str]
    buckets: int | None = None
    """Only for our own operators."""
    windows: WindowState | None = None
    """Only for windows; None in plans that earlier versions stored."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Of columns in the facts of Spark's operators, as far as known. Spark knows them all, and compares them in the
    first epoch.
    """

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> StatefulOperator:
        """From what `asdict` returned."""
        windows = data.get("windows")
        return cls(**{**data, "windows": None if windows is None else WindowState(**windows)})


@dataclass(frozen=True, slots=True)
class StatePlan:
    loads: tuple[str, ...]
    """Inputs in the order in which the query reads them: Spark identifies offsets by their position."""
    operators: tuple[StatefulOperator, ...] = ()

    @property
    def buckets(self) -> int | None:
        """The largest number of buckets of its windows; None without windows."""
        return max((one.buckets for one in self.operators if one.buckets is not None), default=None)

    def closed_to(self) -> dict[str, int]:
        """Window operator → the end of the last windows that stay closed whatever their lateness is."""
        windows = [one.windows for one in self.operators if one.windows is not None]
        return {one.name: one.closed_to_us for one in windows if one.closed_to_us is not None}

    def taking_over(self, stored: StatePlan, watermark: int | None) -> StatePlan:
        """Return this plan, which fits the stored one. What that has purged at this watermark, or what was purged
        before it, stays closed.
        """
        pairs = zip(stored.operators, self.operators, strict=True)
        return replace(self, operators=tuple(_taking_over(old, new, watermark) for old, new in pairs))


def _taking_over(old: StatefulOperator, new: StatefulOperator, watermark: int | None) -> StatefulOperator:
    if old.windows is None or new.windows is None:
        return new
    bounds = [] if old.windows.closed_to_us is None else [old.windows.closed_to_us]
    if new.windows.lateness_us > old.windows.lateness_us and watermark is not None:
        bounds.append(watermark - old.windows.lateness_us)
    return replace(new, windows=replace(new.windows, closed_to_us=max(bounds, default=None)))


def check_compatible(name: str, stored: StatePlan, new: StatePlan) -> None:
    """Raises RequestError that lists all differences that state does not survive, and what may be changed."""
    if found := differences(stored, new):
        lines = "\n".join(f"  {one}" for one in found)
        raise RequestError(
            f"the pipeline {name!r} does not fit its stored state\n{lines}", _COMPATIBLE.format(name=name)
        )


def differences(stored: StatePlan, new: StatePlan) -> list[str]:
    """Those that state does not survive."""
    found = []
    if stored.loads != new.loads:
        found.append(f"inputs: stored {_listed(stored.loads)}; now {_listed(new.loads)}")
    old_names, new_names = ([one.name for one in plan.operators] for plan in (stored, new))
    if old_names != new_names:
        return [*found, f"operators with state: stored {_listed(old_names)}; now {_listed(new_names)}"]
    names = [one.windows.name for one in new.operators if one.windows is not None]
    for old, one in zip(stored.operators, new.operators, strict=True):
        found += [f"{one.name}: {text}" for text in _differences(old, one, names)]
    return found


def _differences(old: StatefulOperator, new: StatefulOperator, names: Sequence[str]) -> Iterator[str]:
    if not old.facts:  # it has none, or an earlier version has stored others
        return
    for name in old.types:
        if new.types.get(name, old.types[name]) != old.types[name]:
            yield f"type of {name}: stored {old.types[name]}; now {new.types[name]}"
    for fact in dict.fromkeys((*old.facts, *new.facts)):
        before, now = old.facts.get(fact, "none"), new.facts.get(fact, "none")
        if before == now or (new.name == ORDERED and fact.startswith(_COLUMN) and "none" in (before, now)):
            continue
        text = f"{fact}: stored {before}; now {now}"
        if new.windows is None or fact not in (AGGREGATES, LATENESS):
            yield text
        elif old.windows is None:
            yield f"{text} ({_UNKNOWN_AGGREGATES})"
        elif fact == AGGREGATES:
            changed = matched(old.windows.stored, new.windows.stored).changed
            yield from (f"{fact}: {one.name}: stored {was.text}; now {one.text}" for was, one in changed)
        elif names.count(new.windows.name) > 1:
            yield f"{text} (two of its windows are named {new.windows.name!r}: first give each its own name=…)"


def changes_taken_over(stored: StatePlan, new: StatePlan) -> list[str]:
    """What is different and taken over, after `check_compatible`."""
    found = []
    for old, one in zip(stored.operators, new.operators, strict=True):
        if one.name == ORDERED:
            found += [f"{ORDERED}: {text}" for text in _columns_taken_over(old.facts, one.facts)]
        if old.windows is None or one.windows is None:
            continue
        match = matched(old.windows.stored, one.windows.stored)
        added = [each.name for each, place in zip(one.windows.stored, match.places, strict=True) if place is None]
        texts = [f"{name} is added, null in windows that have events already" for name in added]
        texts += [f"{each.name} is removed with its state" for each in match.removed]
        if old.windows.lateness_us != one.windows.lateness_us:
            texts.append(f"allowed_lateness changes from {old.facts[LATENESS]} to {one.facts[LATENESS]}")
        found += [f"windows {one.windows.name!r}: {text}" for text in texts]
    return found


def _columns_taken_over(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for fact in dict.fromkeys((*old, *new)):
        if fact.startswith(_COLUMN) and fact not in old:
            yield f"the {fact} is added, null in events that are buffered already"
        elif fact.startswith(_COLUMN) and fact not in new:
            yield f"the {fact} is removed with its state"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# The companion of a checkpoint: the plan that its state belongs to. While a changed plan takes over the state, it has
# both: whichever batch is the last one after a crash, it is known which plan has written the state.


@dataclass(frozen=True, slots=True)
class Companion:
    plan: StatePlan
    following: StatePlan | None = None
    since: int = 0
    """The first batch of the plan that follows."""

    def current(self, committed: int) -> StatePlan:
        """The plan of the state after batch `committed`."""
        return self.following if self.following is not None and committed >= self.since else self.plan

    def text(self) -> str:
        data = {"format": FORMAT, **asdict(self.plan)}
        if self.following is not None:
            data["following"] = asdict(self.following) | {"since": self.since}
        return json.dumps(data, indent=1)

    @classmethod
    def parse(cls, text: str, name: str) -> Companion:
        """`name` is the pipeline's. Raises UnreadableFormat for a text that another version has written."""
        found = None
        try:
            data = json.loads(text)
            found = data.get("format")
            if found in (1, 2, FORMAT):
                return cls._of(data)
        except (ValueError, KeyError, TypeError, AttributeError):
            found = None
        what = f"the plan of {name}'s state (penstock.json in its checkpoint)"
        raise UnreadableFormat(what, found if isinstance(found, int) else None, FORMAT, _START_OVER.format(name=name))

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Companion:
        following = data.get("following")
        if following is None:
            return cls(_parsed(data))
        return cls(_parsed(data), _parsed({"format": data["format"], **following}), following["since"])


def _parsed(data: Mapping[str, Any]) -> StatePlan:
    operators = [StatefulOperator.of(one) for one in data["operators"]]
    if data["format"] < FORMAT:
        operators = [one if one.buckets is not None else replace(one, facts={}) for one in operators]
    return StatePlan(tuple(data["loads"]), tuple(operators))
