"""What `penstock send` waits for: pipelines on its source that take no events yet, or no more."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.cli.connect import get_json
from penstock.core.errors import Unavailable

_LOOK_SECONDS = 0.5

_WATCH_SECONDS = 2.0
"""Between two looks at a worker while acknowledgements are awaited."""


def starting_on(status: Mapping[str, Any], source: str) -> dict[str, str]:
    """By name: the pipelines on a source whose Spark is starting, and what to say of each."""
    return {
        one["name"]: f"waiting for {one['name']}: Spark is starting{_soon(one['ready_in_seconds'])}"
        for one in status.get("starting", ())
        if source in one["sources"]
    }


def _soon(seconds: float | None) -> str:
    return "" if seconds is None else f", ready in about {math.ceil(seconds)} s"


def stalled_on(status: Mapping[str, Any], source: str) -> dict[str, str]:
    """By name: the pipelines on a source that do not run, or that are held, and what to say of each."""
    return {
        one["name"]: sentence
        for one in status.get("pipelines", ())
        if source in {name for sources in one["inputs"].values() for name in sources} and (sentence := _stalled(one))
    }


def _stalled(pipeline: Mapping[str, Any]) -> str:
    name, state = pipeline["name"], pipeline["state"]
    if state in ("FAILING", "STOPPED"):
        return (
            f"waiting for {name}: it is {state}; start it with penstock run, or forget it with penstock pipeline drop"
        )
    return f"waiting for {name}: {pipeline['held']}" if pipeline["held"] else ""


def wait_for_start(http: str, source: str, say: Callable[[str], None]) -> None:
    """Return when no pipeline on the source is starting any more. What is sent before one is registered would be
    acknowledged without its result. Returns at once where acknowledgements do not wait for pipelines. Raises
    Unavailable.
    """
    said: set[str] = set()
    while True:
        status = get_json(http, "/status")
        starting = {} if _acks_at_once(status, source) else starting_on(status, source)
        for name in starting.keys() - said:
            say(starting[name])
        if not starting:
            _say_unread(status, source, say)
            return
        said |= starting.keys()
        time.sleep(_LOOK_SECONDS)


def _acks_at_once(status: Mapping[str, Any], source: str) -> bool:
    return bool(status["gateway"]["sources"].get(source, {}).get("ack") == "durable")


def _say_unread(status: Mapping[str, Any], source: str, say: Callable[[str], None]) -> None:
    inputs = [name for one in status.get("pipelines", ()) for sources in one["inputs"].values() for name in sources]
    if source not in inputs:
        say(f"no pipeline reads {source}: lines are acknowledged when they are stored")


@contextmanager
def watching(http: str | None, source: str, say: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile it is said what acknowledgements wait for, in a thread, whenever that is something new."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(http, source, say, over), name="what send waits for", daemon=True)
    if http is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if http is not None:
            thread.join()


def _watch(http: str, source: str, say: Callable[[str], None], over: threading.Event) -> None:
    said: dict[str, str] = {}
    while not over.wait(_WATCH_SECONDS):
        try:
            status = get_json(http, "/status")
        except Unavailable:  # the client says so itself, if it stays away
            continue
        now = {} if _acks_at_once(status, source) else starting_on(status, source) | stalled_on(status, source)
        for name, sentence in now.items():
            if name not in said:
                say(sentence)
        said = now
