"""`script/bench connectors`: codecs, interceptors and connectors, each beside the plain library that does its talking.

In one process, on one core: MB of encoded events in a second of CPU time. A ratio is ours ÷ the plain library's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from bench.formats import Case, codec_cases, event_rows, interceptor_cases
from bench.harness import MEGABYTE, Report, figures, interleave, progress, surroundings
from bench.web import HTTP, web_cases

FAMILIES = ("codecs", "interceptors", "brokers", "event-logs", "web", "files-and-sockets", "databases")
"""Of cases. `script/bench connectors --only FAMILY` runs those of one."""

WORST = "worst"
GOAL = 0.5
HTTP_GOAL = 0.7
"""Beside a server that stores nothing."""


ROUND_SECONDS_MIN = 0.02
"""Of CPU time: the work is repeated until then, because a fast one takes less than the clock can show."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    events: int
    total_s_max: float


QUICK = Effort(rounds=3, events=2_000, total_s_max=60)
FULL = Effort(rounds=9, events=20_000, total_s_max=600)


@dataclass(frozen=True, slots=True)
class Rates:
    """MB in a second of CPU time."""

    ours: float
    plain: float


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
                    cases += database_cases(event_rows(effort.events), folder)
        with progress(console, len(cases) * effort.rounds) as note:
            found = interleave(cases, effort.rounds, _measured, note)
    settings = surroundings(directory or Path.cwd()) | {"events": effort.events}
    return ConnectorsReport(found, settings)


def _measured(case: Case) -> Rates:
    return Rates(_rate(case, is_ours=True), _rate(case, is_ours=False))


def _rate(case: Case, *, is_ours: bool) -> float:
    work, times, spent = case.ours if is_ours else case.plain, 0, 0.0
    while spent < ROUND_SECONDS_MIN:
        case.before(is_ours)
        try:
            began = process_time()
            work()
            spent += max(process_time() - began, 1e-6)
        finally:
            case.after(is_ours)
        times += 1
    return case.size * times / MEGABYTE / spent


@dataclass(frozen=True)
class ConnectorsReport(Report):
    found: Mapping[str, Sequence[Rates]]
    settings: Mapping[str, object]
    benchmark = "connectors"
    goals = {WORST: GOAL, HTTP: HTTP_GOAL}  # noqa: RUF012  a constant of the class

    def round_ratios(self) -> dict[str, list[float]]:
        """By case; `worst` is the case with the lowest median."""
        each = {name: [one.ours / one.plain for one in rates] for name, rates in self.found.items()}
        return each | {WORST: min(each.values(), key=median)}

    def rounds(self) -> int:
        return min(map(len, self.found.values()))

    def details(self) -> dict[str, object]:
        return {"mb_per_s": {name: round(median(one.ours for one in rates), 3) for name, rates in self.found.items()}}

    def tables(self) -> Iterable[Table]:
        table = figures(
            "Codecs, interceptors and connectors, on one core", "", "MB/s", "plain library", "ratio", "goal"
        )
        for name, rates in self.found.items():
            ours, plain = (median(values) for values in zip(*((one.ours, one.plain) for one in rates), strict=True))
            table.add_row(name, f"{ours:,.0f}", f"{plain:,.0f}", self.ratio_cell(name), self.goal_cell(name))
        table.add_row(WORST, "", "", self.ratio_cell(WORST), self.goal_cell(WORST))
        yield table
