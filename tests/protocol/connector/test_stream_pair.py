"""A source's and a worker's side of one stream, with frames on the way between them: what one may do, the other
accepts.

All orders of events are tried, up to a number of frames: whatever crosses on the way, nobody is accused of anything.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field

from penstock.protocol.connector import NOTHING_YET, Side, Stream, StreamState

MESSAGES_MAX = 2
NOTIFIES_MAX = 3
ON_THE_WAY_MAX = 4

Happening = Callable[[Stream, Side], None]


@dataclass
class World:
    """Everything there is; `stored` is the worker's last id, `answers` the NOTIFYs it has to answer."""

    source: Stream = field(default_factory=lambda: Stream(1))
    worker: Stream = field(default_factory=lambda: Stream(1))
    to_worker: tuple[tuple[str, int], ...] = ()
    to_source: tuple[tuple[str, int], ...] = ()
    sent: int = 0
    notified: int = 0

    def key(self) -> tuple[object, ...]:
        sides = (self.source.state, self.source.last_id, self.worker.state, self.worker.last_id)
        return (*sides, self.to_worker, self.to_source, self.sent, self.notified)

    def copy(self) -> "World":
        made = copy(self)
        made.source, made.worker = copy(self.source), copy(self.worker)
        return made


def apply(stream: Stream, frame: tuple[str, int], side: Side) -> None:
    name, number = frame
    happenings: dict[str, Happening] = {
        "notify": lambda stream, side: stream.notify(side),
        "accept": lambda stream, side: stream.notify_ack(True, number, side),
        "refuse": lambda stream, side: stream.notify_ack(False, 0, side),
        "message": lambda stream, side: stream.messages(number, side),
        "eos": lambda stream, side: stream.end(side),
        "ack": lambda stream, side: stream.ack(number, side),
    }
    happenings[name](stream, side)


def source_may(world: World) -> Iterator[tuple[str, int]]:
    state = world.source.state
    asks = (StreamState.NEW, StreamState.INACTIVE, StreamState.CLOSING)
    if state in asks and world.notified < NOTIFIES_MAX:
        yield "notify", 0
    if state is StreamState.ACTIVE:
        yield "eos", 0
        if world.sent < MESSAGES_MAX:
            yield "message", world.sent


def worker_may(world: World) -> Iterator[tuple[str, int]]:
    state, last_id = world.worker.state, world.worker.last_id
    if state is StreamState.NOTIFIED:
        yield "accept", last_id
    if state in (StreamState.NOTIFIED, StreamState.REOPENING):
        yield "refuse", 0
    if last_id != NOTHING_YET and state in (StreamState.ACTIVE, StreamState.CLOSING, StreamState.REOPENING):
        yield from (("ack", point) for point in range(last_id + 1))


def following(world: World) -> Iterator[World]:
    for frame in source_may(world) if len(world.to_worker) < ON_THE_WAY_MAX else ():
        made = world.copy()
        apply(made.source, frame, Side.OURS)
        made.to_worker += (frame,)
        made.sent += frame[0] == "message"
        made.notified += frame[0] == "notify"
        yield made
    for frame in worker_may(world) if len(world.to_source) < ON_THE_WAY_MAX else ():
        made = world.copy()
        apply(made.worker, frame, Side.OURS)
        made.to_source += (frame,)
        yield made
    if world.to_worker:
        made = world.copy()
        apply(made.worker, world.to_worker[0], Side.THEIRS)
        made.to_worker = world.to_worker[1:]
        yield made
    if world.to_source:
        made = world.copy()
        apply(made.source, world.to_source[0], Side.THEIRS)
        made.to_source = world.to_source[1:]
        yield made


def test_whatever_crosses_on_the_way_is_legal_at_the_other_end() -> None:
    seen = {World().key()}
    waiting = [World()]
    settled = set()
    while waiting:
        world = waiting.pop()
        if not world.to_worker and not world.to_source:
            settled.add((world.source.state, world.worker.state))
        for made in following(world):
            if made.key() not in seen:
                seen.add(made.key())
                waiting.append(made)
    assert len(seen) > 1000
    assert (StreamState.ACTIVE, StreamState.ACTIVE) in settled
    assert (StreamState.INACTIVE, StreamState.INACTIVE) in settled
    # A source whose last ACK came before its EOS_MESSAGE went is done with the stream before the worker is.
    ahead = {(StreamState.INACTIVE, StreamState.CLOSING), (StreamState.NOTIFIED, StreamState.REOPENING)}
    assert {pair for pair in settled if pair[0] is not pair[1]} == ahead
