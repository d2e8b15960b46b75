"""A model of a store: a few frozen values, copied for every change, so that any earlier state can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.core.types import Offset
from penstock.store.store import SegmentStore


@dataclass(frozen=True, slots=True)
class ModelSegment:
    data: bytes = b""
    """From offset 0 on, truncated bytes included."""
    start: int = 0
    sealed: bool = False
    writers: Mapping[bytes, int] = field(default_factory=dict)
    attributes: Mapping[bytes, int] = field(default_factory=dict)
    heads: tuple[tuple[int, bytes], ...] = ()
    """Of each append with bytes: where these end, and the head."""

    @property
    def live_heads(self) -> tuple[tuple[int, bytes], ...]:
        return tuple((end, head) for end, head in self.heads if end > self.start)


State: TypeAlias = Mapping[str, ModelSegment]
"""Segments by name. Every change makes a new one."""


def created(state: State, name: str, attributes: Mapping[bytes, int]) -> State:
    return {**state, name: ModelSegment(attributes=dict(attributes))}


def appended(state: State, name: str, data: bytes, head: bytes, writer: bytes, number: int) -> State:
    old = state[name]
    heads = (*old.heads, (len(old.data) + len(data), head)) if data else old.heads
    writers = {**old.writers, writer: number} if writer else old.writers
    return {**state, name: replace(old, data=old.data + data, heads=heads, writers=writers)}


def changed(state: State, name: str, **changes: object) -> State:
    return {**state, name: replace(state[name], **changes)}  # type: ignore[arg-type]


def deleted(state: State, name: str) -> State:
    return {other: segment for other, segment in state.items() if other != name}


def merged(state: State, merges: Sequence[tuple[str, str]], updates: Sequence[tuple[str, bytes, int]]) -> State:
    for target_name, source_name in merges:
        target, source = state[target_name], state[source_name]
        heads = tuple((len(target.data) + end, head) for end, head in source.heads)
        state = changed(state, target_name, data=target.data + source.data, heads=target.heads + heads)
        state = deleted(state, source_name)
    for name, key, value in updates:
        state = changed(state, name, attributes={**state[name].attributes, key: value})
    return state


def observed(store: SegmentStore) -> State:
    """Everything observable in a store, as a state; truncated bytes as dots."""
    return {info.name: observed_segment(store, info.name) for info in store.segments()}


def observed_segment(store: SegmentStore, name: str) -> ModelSegment:
    info, segment = store.info(name), store.table.named(name)
    assert segment is not None
    return ModelSegment(
        data=b"." * info.start + read_all(store, name, info.start),
        start=info.start,
        sealed=info.sealed,
        writers=dict(segment.writers or {}),
        attributes=dict(info.attributes),
        heads=tuple((int(end), bytes(head)) for end, head in store.heads(name, info.start, info.length)),
    )


def read_all(store: SegmentStore, name: str, start: int = 0) -> bytes:
    """All durable bytes, in as many reads as necessary."""
    parts = []
    while True:
        located = store.locate(name, Offset(start), 1000)
        part = b"".join(store.fetch(located))
        parts.append(part)
        start += len(part)
        if located.at_tail:
            return b"".join(parts)
        assert part, "a read before the tail must bring something"


def comparable(state: State) -> State:
    """A state as `observed` would see it."""
    return {name: replace(s, data=b"." * s.start + s.data[s.start :], heads=s.live_heads) for name, s in state.items()}
