"""Which input of a pipeline a letter's event came by. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.coordinator.machine.state import Pipeline, source_of
from penstock.core.errors import RequestError
from penstock.protocol.stored.letters import Letter
from penstock.protocol.stored.names import REPLAY_PREFIX, check_pipeline_name


@dataclass(frozen=True, slots=True)
class Sorted:
    """Letters as the events that they were, one behind the other, by inputs."""

    events: dict[str, bytes] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    """Letters that no input can be found for: they were rows already, or nobody reads their source any more."""


def sort_letters(name: str, pipeline: Pipeline, letters: Sequence[Letter], key: str | None) -> Sorted:
    """Raises RequestError if several inputs read where a letter came from, and `key` is none of them."""
    events: dict[str, list[bytes]] = {}
    for letter in letters:
        found = input_of(name, pipeline, letter.segment, key)
        if found is not None:
            events.setdefault(found, []).append(letter.original())
    count = sum(map(len, events.values()))
    return Sorted({found: b"".join(parts) for found, parts in events.items()}, count, len(letters) - count)


def input_of(name: str, pipeline: Pipeline, segment: str | None, key: str | None) -> str | None:
    if key is not None and key not in pipeline.inputs:
        raise RequestError(f"pipeline {name!r} has no input {key!r}", f"It has: {', '.join(pipeline.inputs)}.")
    source = _source(segment)
    found = [one for one, spec in pipeline.inputs.items() if source in spec.sources]
    if len(found) > 1 and key not in found:
        raise RequestError(f"several inputs read {source}: {', '.join(found)}", "Name one of them: --input NAME")
    chosen = key if key in found else next(iter(found), None)
    if chosen is not None:
        check_pipeline_name(REPLAY_PREFIX + chosen, "port")
    return chosen


def _source(segment: str | None) -> str:
    """None of any input's for what is no segment of events."""
    try:
        return source_of(segment) if segment else ""
    except RequestError:
        return ""
