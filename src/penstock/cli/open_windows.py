"""Reports on open windows: what they wait for, and what happens to them when a command ends."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress

from penstock.cli.texts import printable
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.core.errors import PenstockError

_ANSWER_SECONDS_MAX = 2.0
"""How long a command that is about to end waits for the worker's answer."""


def staying_open(pipelines: Iterable[PipelineStatus]) -> Iterator[str]:
    """For pipelines that have stopped: how many windows they leave open, and what closes them."""
    for each in pipelines:
        if each.open_windows:
            stay, them = _staying(each.open_windows, "window")
            yield printable(f"{each.name}: {stay} open{_ending(each, f'closes {them}', f'close {them}')}")
        if each.buffered_events:
            stay, them = _staying(each.buffered_events, "event")
            yield printable(f"{each.name}: {stay} buffered{_ending(each, f'emits {them}', f'emit {them}')}")


def _staying(count: int, what: str) -> tuple[str, str]:
    return (f"1 {what} stays", "it") if count == 1 else (f"{count:,} {what}s stay", "them")


def _ending(pipeline: PipelineStatus, does: str, do: str) -> str:
    """Suggests the command that ends a source only where no clock closes the windows: it cannot be undone."""
    if pipeline.open_windows_by_clock:
        return f"; the next run {does}, by the worker's clock"
    ends = ", ".join(f"penstock source end {source}" for source in pipeline.open_windows_sources)
    return f" until the next run{f'; to {do} for good, run this while it runs: {ends}' if ends else ''}"


def report_staying_open(worker: str, names: Collection[str], report: Callable[[str], None]) -> None:
    """At the end of a command that has run these pipelines. Reports nothing if the worker does not answer."""
    with (
        suppress(PenstockError),
        CoordinatorClient(worker, 0, timeout_seconds=_ANSWER_SECONDS_MAX) as client,
    ):
        for sentence in staying_open(one for one in client.pipelines() if one.name in names):
            report(sentence)
