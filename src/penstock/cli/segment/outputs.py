"""What is said of a pipeline's output that is not there yet, or is still empty."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import NoSuchSegment

_PREFIX = "pipeline/"


def missing(segment: str, status: Mapping[str, Any]) -> NoSuchSegment:
    """Why there is no such segment, as far as a worker's /status tells."""
    pipeline, port = _parsed(segment)
    if not pipeline:
        return NoSuchSegment(f"there is no segment {segment!r}")
    known = {one["name"]: one for one in status.get("pipelines", ())}
    starting = [one["name"] for one in status.get("starting", ())]
    if pipeline not in known and pipeline not in starting:
        names = ", ".join(known) or "none"
        return NoSuchSegment(f"there is no segment {segment!r}: no pipeline {pipeline!r} is known", f"Known: {names}.")
    outputs = known.get(pipeline, {}).get("outputs")
    if outputs and port not in outputs:
        hint = f"It has: {', '.join(outputs)}."
        return NoSuchSegment(f"there is no segment {segment!r}: {pipeline} has no port {port!r}", hint)
    state = known[pipeline]["state"] if pipeline in known else "STARTING"
    return NoSuchSegment(
        f"{segment} does not exist yet: {pipeline} is {state}, and has committed no epoch", _next(state)
    )


def _next(state: str) -> str:
    """What makes it appear."""
    match state:
        case "STARTING":
            return "penstock run says when the pipeline is ready; its output is there after its first epoch."
        case "RUNNING":
            return "It is there after the first epoch: send it something."
        case _:
            return "Start the pipeline: penstock run"


def emptiness(segment: str, status: Mapping[str, Any]) -> str:
    """Why an output that is there has nothing in it; "" where nothing can be said."""
    pipeline, _ = _parsed(segment)
    for one in status.get("pipelines", ()):
        if one["name"] == pipeline and one["batch"] is None:
            return f"{segment} is empty: {pipeline} is {one['state']}, and has committed no epoch yet"
    return ""


def _parsed(segment: str) -> tuple[str, str]:
    """Pipeline and port; nothing for segments that are no outputs."""
    name, _, port = segment.removeprefix(_PREFIX).partition("/") if segment.startswith(_PREFIX) else ("", "", "")
    return (name, port) if port else ("", "")
