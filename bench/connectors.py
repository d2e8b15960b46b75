"""`script/bench connectors`: codecs, interceptors and connectors, each beside the plain library that does its talking.

In one process, on one core. Rates are those of a second of CPU time, and of a second of the clock, without what peers
take to start. A ratio is ours ÷ the plain library's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from bench.brokers import FLOWS, Flows, broker_cases
from bench.databases import database_cases
from bench.event_logs import event_log_cases
from bench.files_and_sockets import file_and_socket_cases
from bench.formats import Case, codec_cases, interceptor_cases
from bench.harness import MEGABYTE, Report, figures, interleave, progress, surroundings
from bench.plain_libraries import plain_library
from bench.socket_peers import BODY
from bench.stopwatch import STOPWATCH
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
class Rate:
    """MB in a second of CPU time, and of the clock."""

    cpu: float
    clock: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one round."""

    ours: Rate
    plain: Rate


def run(
    effort: Effort,
    directory: Path | None = None,
    console: Console | None = None,
    *,
    families: Collection[str] = FAMILIES,
    flows: Flows = FLOWS,
) -> ConnectorsReport:
    """The cases of these families, and of these brokers."""
    by_family: dict[str, list[Case]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
        for family in families:
            by_family[family] = [*_cases(family, effort.events, folder, flows, stack)]
        cases = [case for each in by_family.values() for case in each]
        for case in cases:  # what is imported and compiled when it is first used is not measured
            _rate(case, 0, is_ours=True)
        deadline = time.monotonic() + effort.total_s_max
        with progress(console, len(cases) * effort.rounds) as note:
            found = interleave(cases, effort.rounds, partial(_measured, round_s_min=effort.round_s_min), note, deadline)
    settings = surroundings(directory or Path.cwd()) | {"events": effort.events}
    return ConnectorsReport(by_family, found, settings)


def _cases(family: str, events: int, folder: Path, flows: Flows, stack: ExitStack) -> Iterable[Case]:
    """Servers run until the stack is closed."""
    match family:
        case "codecs":
            return codec_cases(events, folder)
        case "interceptors":
            return interceptor_cases(events)
        case "brokers":
            return stack.enter_context(broker_cases(events, flows))
        case "event-logs":
            return stack.enter_context(event_log_cases(events))
        case "web":
            return web_cases(events)
        case "files-and-sockets":
            return file_and_socket_cases(events, folder)
    return stack.enter_context(database_cases(events, folder))


def _measured(case: Case, round_s_min: float) -> Rates:
    return Rates(_rate(case, round_s_min, is_ours=True), _rate(case, round_s_min, is_ours=False))


def _rate(case: Case, round_s_min: float, *, is_ours: bool) -> Rate:
    work, times, cpu_s, clock_s = case.ours if is_ours else case.plain, 0, 0.0, 0.0
    while cpu_s < round_s_min or not times:
        case.before(is_ours)
        try:
            with STOPWATCH.running():
                work()
        finally:
            case.after(is_ours)
        cpu_s, clock_s, times = cpu_s + STOPWATCH.cpu_s, clock_s + STOPWATCH.clock_s, times + 1
    size = case.size * times / MEGABYTE
    return Rate(size / cpu_s, size / clock_s)


@dataclass(frozen=True)
class ConnectorsReport(Report):
    """Goals, and `worst`, are those of ratios by CPU time, which depend less on what else the machine does; those by
    the clock are shown beside them.
    """

    cases: Mapping[str, Sequence[Case]]
    """By family."""
    found: Mapping[str, Sequence[Rates]]
    settings: Mapping[str, object]
    benchmark = "connectors"
    goals = {WORST: GOAL, HTTP: HTTP_GOAL, WS_GROWTH: WS_GROWTH_GOAL}  # noqa: RUF012  a constant of the class

    def round_ratios(self) -> dict[str, list[float]]:
        """By case; `worst` is the case with the lowest median."""
        each = {name: [one.ours.cpu / one.plain.cpu for one in rates] for name, rates in self.found.items()}
        worst = {WORST: min(each.values(), key=median)}
        messages = [one.ours.clock * MEGABYTE / len(BODY) for one in self.found.get(WS, ())]
        return each | worst | ({WS_GROWTH: [rate / WS_BEFORE for rate in messages]} if messages else {})

    def rounds(self) -> int:
        return min(map(len, self.found.values()))

    def details(self) -> dict[str, object]:
        connectors = [case for case in self._each() if case.events]
        return {
            "ratios_by": "CPU time",
            "ratios_by_the_clock": {name: round(ratio, 3) for name, ratio in self._by_the_clock().items()},
            "mb_per_s": {case.name: round(self._rate(case).cpu, 3) for case in self._each()},
            "events_per_s": {case.name: round(_events(case, self._rate(case).cpu)) for case in connectors},
            "events_per_s_by_the_clock": {
                case.name: round(_events(case, self._rate(case).clock)) for case in connectors
            },
        }

    def _each(self) -> Iterator[Case]:
        for cases in self.cases.values():
            yield from cases

    def _rate(self, case: Case) -> Rate:
        """Ours."""
        rates = self.found[case.name]
        return Rate(median(one.ours.cpu for one in rates), median(one.ours.clock for one in rates))

    def _by_the_clock(self) -> dict[str, float]:
        return {name: median(one.ours.clock / one.plain.clock for one in rates) for name, rates in self.found.items()}

    def tables(self) -> Iterable[Table]:
        by_the_clock = self._by_the_clock()
        for family, cases in self.cases.items():
            if any(case.events for case in cases):
                yield self._connectors(family, cases, by_the_clock)
            elif cases:
                yield self._formats(family, cases, by_the_clock)
        table = figures("All of them", "", "ratio", "goal")
        for name in (WORST, WS_GROWTH):
            if self.round_ratios().get(name):
                table.add_row(name, self.ratio_cell(name), self.goal_cell(name))
        yield table

    def _connectors(self, family: str, cases: Sequence[Case], by_the_clock: Mapping[str, float]) -> Table:
        table = _compared(family, "events/s of CPU time", "events/s by the clock")
        for case in cases:
            rate = self._rate(case)
            events = (f"{_events(case, each):,.0f}" for each in (rate.cpu, rate.clock))
            table.add_row(case.name, *events, *self._beside(case, by_the_clock))
        return table

    def _formats(self, family: str, cases: Sequence[Case], by_the_clock: Mapping[str, float]) -> Table:
        table = _compared(family, "MB/s of CPU time")
        for case in cases:
            table.add_row(case.name, f"{self._rate(case).cpu:,.0f}", *self._beside(case, by_the_clock))
        return table

    def _beside(self, case: Case, by_the_clock: Mapping[str, float]) -> tuple[str, ...]:
        ratio = f"{by_the_clock[case.name]:.2f}"
        return self.ratio_cell(case.name), ratio, self.goal_cell(case.name), plain_library(case.name)

    def notes(self) -> Iterable[str]:
        return (
            "Goals, and `worst`, are those of ratios by CPU time, which depend less on load than those by the clock.",
        )


def _compared(family: str, *rates: str) -> Table:
    table = figures(family, "", *rates, "ratio by CPU time", "by the clock", "goal", "compared with")
    table.columns[-1].justify = "left"
    return table


def _events(case: Case, mb_per_s: float) -> float:
    return mb_per_s * MEGABYTE * case.events / case.size
