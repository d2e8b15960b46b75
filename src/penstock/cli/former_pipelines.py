"""Pipelines that are no longer in the application: they stay registered, and sources and retention wait for them, until
they are dropped.
"""

import sys
import time
from collections.abc import Callable, Collection
from typing import Annotated

import typer

from penstock.cli.waiting import waiting
from penstock.client.coordinator.client import ApplicationClient, CoordinatorClient
from penstock.core.sizes import show_size
from penstock.protocol.api.pipelines import PipelineStatus

STOP_SECONDS_MAX = 30.0
"""Until the driver has stopped a pipeline that was taken out: it finishes no epoch, but Spark takes a while."""

DELIVERY_SECONDS_MAX = 10.0
"""Until sinks have the last epochs, before --prune drops their pipeline. A sink that is slower may be stuck."""

_LOOK_SECONDS = 0.2
_RUNNING = ("STARTING", "RUNNING")

PruneOption = Annotated[
    bool,
    typer.Option("--prune", help="Drop pipelines that are no longer in the application, once they are delivered."),
]
Report = Callable[[str], None]


def settle_former(worker: str, before: Collection[str], *, prune: bool, ask: bool, report: Report) -> None:
    """After an apply: drop the pipelines that are no longer deployed, or report that they are kept. `before`: the
    pipelines of the deployment that was replaced. Others that run are not the application's any more, and are left
    alone. With `ask`, a person at a terminal decides, also for pipelines with undelivered epochs.
    """
    with ApplicationClient(worker) as client:
        former = client.application().former
    if not former:
        return
    with CoordinatorClient(worker) as coordinator:
        for known in coordinator.pipelines():
            if known.name in former and (known.name in before or known.state not in _RUNNING):
                _settle(coordinator, known.name, prune=prune, ask=ask and sys.stdin.isatty(), report=report)


def _settle(coordinator: CoordinatorClient, name: str, *, prune: bool, ask: bool, report: Report) -> None:
    if not _is_stopped(coordinator, name):
        report(f"kept {name}: it still runs. {_later(name)}")
        return
    if prune:
        left = _undelivered(coordinator, name, DELIVERY_SECONDS_MAX)
        if left:
            report(f"kept {name}: {left} of its epochs are not delivered. {_later(name)}")
            return
    elif not (ask and typer.confirm(f"drop pipeline {name}? It {_holds(coordinator, name)}", err=True)):
        report(f"kept {name}, which {_holds(coordinator, name)}. {_later(name)}")
        return
    coordinator.drop(name)
    report(f"dropped {name}")


def _later(name: str) -> str:
    return f"To drop it: penstock pipeline drop {name}"


def _holds(coordinator: CoordinatorClient, name: str) -> str:
    """What waits for it, as a phrase that follows its name."""
    known = _status(coordinator, name)
    sources = ", ".join(dict.fromkeys(source for named in known.inputs.values() for source in named)) if known else ""
    left = len(coordinator.epochs(name))
    epochs = f"has {left} undelivered {'epoch' if left == 1 else 'epochs'}"
    return f"{epochs} and blocks {show_size(known.lag_bytes if known else 0)} of {sources or 'no source'}"


def _is_stopped(coordinator: CoordinatorClient, name: str) -> bool:
    """Wait for it."""
    deadline = time.monotonic() + STOP_SECONDS_MAX
    with waiting(f"waiting until {name} has stopped …"):
        while (known := _status(coordinator, name)) is not None and known.state in _RUNNING:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
    return True


def _status(coordinator: CoordinatorClient, name: str) -> PipelineStatus | None:
    return next((one for one in coordinator.pipelines() if one.name == name), None)


def _undelivered(coordinator: CoordinatorClient, name: str, seconds_max: float) -> int:
    """How many epochs its sinks still lack after a while."""
    deadline = time.monotonic() + seconds_max
    with waiting(f"waiting for the delivery of {name} …"):
        while (left := len(coordinator.epochs(name))) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
    return left
