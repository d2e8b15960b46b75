"""Windows in plain Python, event by event, as the execution model defines them: slow, and obviously correct.

The cuts are given. In epoch N events are compared with the watermark of cut N-1 and applied; then the watermark of
cut N fires and purges windows. It shares only the types of windows with the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.stored.event import END_OF_TIME
from penstock.windows.kinds import Session, Window


@dataclass(frozen=True)
class Event:
    """`number` is unique: it represents the event's position and its bytes."""

    time: int
    key: Any
    value: int | None
    number: int


@dataclass(frozen=True)
class Pane:
    """`events` are all events in the result, ordered by time, then number."""

    key: Any
    start: int
    end: int
    kind: str
    revision: int
    events: tuple[Event, ...]
    replaces: frozenset[tuple[int, int]] = frozenset()


@dataclass
class _Kept:
    """The state of a key and window. `last`: the revision of its latest pane, None before the first."""

    start: int
    end: int
    events: list[Event] = field(default_factory=list)
    last: int | None = None
    changed: bool = False
    fired: set[tuple[int, int]] = field(default_factory=set)
    """Sessions: the bounds of panes that stand, and that its next pane must replace or repeat."""


class Reference:
    """A pipeline's windows."""

    def __init__(self, window: Window, lateness: int = 0, *, strict: bool = False) -> None:
        self.window = window
        self.lateness = lateness
        self.strict = strict
        self.kept: dict[Any, list[_Kept]] = {}

    def epoch(self, events: Sequence[Event], before: int | None, after: int | None) -> tuple[list[Pane], list[Event]]:
        """Panes and late events, in no particular order."""
        for windows in self.kept.values():
            for kept in windows:
                kept.changed = False
        apply = self._apply_to_sessions if isinstance(self.window, Session) else self._apply_to_fixed
        late = apply(events, before)
        panes = [
            self._fire(key, kept, before)
            for key, windows in self.kept.items()
            for kept in windows
            if _passed(kept.end, after) and (kept.changed or not _passed(kept.end, before))
        ]
        for key, windows in self.kept.items():
            self.kept[key] = [kept for kept in windows if not _passed(kept.end + self.lateness, after)]
        return panes, late

    def _fire(self, key: Any, kept: _Kept, before: int | None) -> Pane:
        """The first pane is on time if the watermark has just reached the end; everything later is an update."""
        if kept.last is not None:
            kept.last += 1
        else:
            kept.last = 1 if _passed(kept.end, before) else 0
        bounds = (kept.start, kept.end)
        replaces = frozenset(kept.fired - {bounds})
        kept.fired = {bounds}
        events = tuple(sorted(kept.events, key=lambda event: (event.time, event.number)))
        return Pane(key, *bounds, "on_time" if kept.last == 0 else "update", kept.last, events, replaces)

    def _apply_to_fixed(self, events: Sequence[Event], before: int | None) -> list[Event]:
        late = []
        for event in events:
            windows = self._windows_of(event.time)
            open_ones = [bounds for bounds in windows if not _passed(bounds[1] + self.lateness, before)]
            if not open_ones or (self.strict and before is not None and event.time < before):
                late.append(event)
                continue
            for bounds in open_ones:
                kept = self._kept(event.key, bounds)
                kept.events.append(event)
                kept.changed = True
        return late

    def _windows_of(self, time: int) -> list[tuple[int, int]]:
        assert not isinstance(self.window, Session)
        start = time - (time - self.window.offset_us) % self.window.slide_us
        found = []
        while time < start + self.window.size_us:
            found.append((start, start + self.window.size_us))
            start -= self.window.slide_us
        return found

    def _kept(self, key: Any, bounds: tuple[int, int]) -> _Kept:
        windows = self.kept.setdefault(key, [])
        for kept in windows:
            if (kept.start, kept.end) == bounds:
                return kept
        windows.append(_Kept(*bounds))
        return windows[-1]

    def _apply_to_sessions(self, events: Sequence[Event], before: int | None) -> list[Event]:
        assert isinstance(self.window, Session)
        late = []
        for event in events:
            if self.strict and before is not None and event.time < before:
                late.append(event)
            else:
                alone = _Kept(event.time, event.time + self.window.gap_us, [event], changed=True)
                self.kept.setdefault(event.key, []).append(alone)
        for key in self.kept:
            sessions = _joined(self.kept[key])
            if not self.strict:
                missed = [each for each in sessions if each.changed and _passed(each.end + self.lateness, before)]
                late += [event for each in missed for event in each.events]
                sessions = [each for each in sessions if each not in missed]
            self.kept[key] = sessions
        return late


def _joined(sessions: list[_Kept]) -> list[_Kept]:
    """Merge overlapping sessions until none overlap. A session that starts where another ends stays separate."""
    sessions = list(sessions)
    while (pair := _overlapping(sessions)) is not None:
        sessions = [each for each in sessions if each is not pair[0] and each is not pair[1]]
        sessions.append(_join(*pair))
    return sessions


def _overlapping(sessions: list[_Kept]) -> tuple[_Kept, _Kept] | None:
    for one in sessions:
        for other in sessions:
            if one is not other and one.start < other.end and other.start < one.end:
                return one, other
    return None


def _join(one: _Kept, other: _Kept) -> _Kept:
    revisions = [each.last for each in (one, other) if each.last is not None]
    return _Kept(
        min(one.start, other.start),
        max(one.end, other.end),
        one.events + other.events,
        max(revisions, default=None),
        changed=one.changed or other.changed,
        fired=one.fired | other.fired,
    )


def _passed(time: int, watermark: int | None) -> bool:
    """An unknown watermark has passed nothing; that of sources that have all ended has passed everything."""
    return watermark is not None and (time <= watermark or watermark == END_OF_TIME)
