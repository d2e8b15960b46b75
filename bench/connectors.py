"""`script/bench connectors`: codecs, interceptors and connectors, each beside the plain library that does its talking.

In one process, on one core: MB of encoded events in a second of CPU time. A ratio is ours ÷ the plain library's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from rich.console import Console
from rich.table import Table

from bench.brokers import FLOWS, Flows, broker_cases
from bench.databases import database_cases
from bench.event_logs import event_log_cases
from bench.files_and_sockets import file_and_socket_cases
from bench.formats import Case, codec_cases, interceptor_cases
from bench.harness import MEGABYTE, Report, figures, interleave, progress, surroundings
from bench.socket_peers import BODY
from bench.web import HTTP, WS, web_cases

FAMILIES = ("codecs", "interceptors", "brokers", "event-logs", "web", "files-and-sockets", "databases")
"""Of cases. `script/bench connectors --only FAMILY` runs those of one."""

WORST = "worst"
GOAL = 0.5
HTTP_GOAL = 0.7
"""Beside a server that stores nothing."""
WS_GROWTH, WS_BEFORE, WS_GROWTH_GOAL = "ws-server ÷ 3,600 messages/s", 3_600, 10
"""What it did when each message was stored alone; by the clock."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much. The work of a side is repeated until a round has taken `round_s_min` of CPU time."""

    rounds: int
    events: int
    total_s_max: float
    """When the time is up, no further round is started."""
    round_s_min: float = 0.02
    """A fast one takes less than the clock can show."""


QUICK = Effort(rounds=3, events=2_000, total_s_max=600)
FULL = Effort(rounds=7, events=20_000, total_s_max=3600, round_s_min=1.0)


@dataclass(frozen=True, slots=True)
class Rates:
    """MB in a second of CPU time."""

    ours: float
    plain: float
    ours_elapsed: float
    """The same in a second of the clock, with what the peer takes to start."""
    events: float
    """Ours, in a second of CPU time; 0 if they are not counted."""


def run(
    effort: Effort,
    directory: Path | None = None,
    console: Console | None = None,
    *,
    families: Collection[str] = FAMILIES,
    flows: Flows = FLOWS,
) -> ConnectorsReport:
    """The cases of these families, and of these brokers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
        cases: list[Case] = []
        for family in families:
            match family:
                case "codecs":
                    cases += codec_cases(effort.events, folder)
                case "interceptors":
                    cases += interceptor_cases(effort.events)
                case "brokers":
                    cases += stack.enter_context(broker_cases(effort.events, flows))
                case "event-logs":
                    cases += stack.enter_context(event_log_cases(effort.events))
                case "web":
                    cases += web_cases(effort.events)
                case "files-and-sockets":
                    cases += file_and_socket_cases(effort.events, folder)
                case "databases":
                    cases += stack.enter_context(database_cases(effort.events, folder))
        for case in cases:  # what is imported and compiled when it is first used is not measured
            _rates(case, 0, is_ours=True)
        deadline = time.monotonic() + effort.total_s_max
        with progress(console, len(cases) * effort.rounds) as note:
            found = interleave(cases, effort.rounds, partial(_measured, round_s_min=effort.round_s_min), note, deadline)
    settings = surroundings(directory or Path.cwd()) | {"events": effort.events}
    return ConnectorsReport(found, settings)


def _measured(case: Case, round_s_min: float) -> Rates:
    ours, elapsed = _rates(case, round_s_min, is_ours=True)
    plain, _ = _rates(case, round_s_min, is_ours=False)
    return Rates(ours, plain, elapsed, ours * MEGABYTE * case.events / case.size)


def _rates(case: Case, round_s_min: float, *, is_ours: bool) -> tuple[float, float]:
    """By CPU time, and by the clock."""
    work, times, spent, elapsed = case.ours if is_ours else case.plain, 0, 0.0, 0.0
    while spent < round_s_min or not times:
        case.before(is_ours)
        try:
            began, at = process_time(), time.monotonic()
            work()
            spent += max(process_time() - began, 1e-6)
            elapsed += max(time.monotonic() - at, 1e-6)
        finally:
            case.after(is_ours)
        times += 1
    size = case.size * times / MEGABYTE
    return size / spent, size / elapsed


@dataclass(frozen=True)
class ConnectorsReport(Report):
    found: Mapping[str, Sequence[Rates]]
    settings: Mapping[str, object]
    benchmark = "connectors"
    goals = {WORST: GOAL, HTTP: HTTP_GOAL, WS_GROWTH: WS_GROWTH_GOAL}  # noqa: RUF012  a constant of the class

    def round_ratios(self) -> dict[str, list[float]]:
        """By case; `worst` is the case with the lowest median."""
        each = {name: [one.ours / one.plain for one in rates] for name, rates in self.found.items()}
        worst = {WORST: min(each.values(), key=median)}
        messages = [one.ours_elapsed * MEGABYTE / len(BODY) for one in self.found.get(WS, ())]
        return each | worst | ({WS_GROWTH: [rate / WS_BEFORE for rate in messages]} if messages else {})

    def rounds(self) -> int:
        return min(map(len, self.found.values()))

    def details(self) -> dict[str, object]:
        return {
            "mb_per_s": {name: round(median(one.ours for one in rates), 3) for name, rates in self.found.items()},
            "events_per_s": {name: round(rate) for name, rate in self._events().items() if rate},
        }

    def _events(self) -> dict[str, float]:
        return {name: median(one.events for one in rates) for name, rates in self.found.items()}

    def tables(self) -> Iterable[Table]:
        table = figures(
            "Codecs, interceptors and connectors, on one core",
            "",
            "events/s",
            "MB/s",
            "plain library",
            "ratio",
            "goal",
        )
        for name, rates in self.found.items():
            ours, plain = (median(values) for values in zip(*((one.ours, one.plain) for one in rates), strict=True))
            events = f"{rate:,.0f}" if (rate := self._events()[name]) else ""
            table.add_row(name, events, f"{ours:,.0f}", f"{plain:,.0f}", self.ratio_cell(name), self.goal_cell(name))
        for name in (WORST, WS_GROWTH):
            if self.round_ratios().get(name):
                table.add_row(name, "", "", "", self.ratio_cell(name), self.goal_cell(name))
        yield table
