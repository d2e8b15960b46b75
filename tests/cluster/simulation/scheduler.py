"""Programs that wait run one at a time, in simulated time, in an order that only the seed decides.

An actor is a thread, so that the code under test may block as it does in a process: it waits by giving the baton back
to the scheduler. Actors belong to a *unit*, which is an operating-system process: it has a clock of its own that runs
too fast or too slow, it can be stopped for a while, and it can be killed at any of its waits.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from threading import Event, Lock, Thread
from typing import TypeVar

from penstock.bucket.objects import ListedObject
from penstock.cluster.records import SHARDS
from penstock.core.errors import BucketUnavailable
from penstock.testing.faulty_bucket import BucketFaults, FaultyBucket, Objects

T = TypeVar("T")

TAKE_OVER = f"replace {SHARDS}"
HESITATION = 15.0
"""So many times as often as others, requests that take a shard over come late."""

REQUEST_SECONDS_MAX = 2.0
"""After which a client gives a request up."""


class Killed(BaseException):
    """This unit was killed."""


class Scheduler:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.sleeps = 0.0
        """The probability that a unit sleeps in one of its requests: before its effect, or before its answer."""
        self.harsher: Random | None = None
        """Decides which units also sleep between the effect of a write and its answer; None: no unit does."""
        self.hesitates = False
        """Whether many units also sleep just before they take a shard over."""
        self.back = Lock()
        self.back.acquire()
        self.current: Actor | None = None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heappush(self._due, (when, next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heappop(self._due)
            act()
        self.now = until

    @property
    def actor(self) -> "Actor":
        assert self.current is not None, "only actors wait"
        return self.current


class Unit:
    """One run of an operating-system process."""

    def __init__(self, scheduler: Scheduler, name: str, rate: float) -> None:
        self.scheduler = scheduler
        self.name = name
        self.rate = rate
        self._offset = scheduler.random.uniform(0, 1000)
        self.stopped_until = 0.0
        self.sleepiness = 1.0
        self.is_dead = False
        self.actors: list[Actor] = []

    def clock(self) -> float:
        return self._offset + self.scheduler.now * self.rate

    def spawn(self, name: str, body: Callable[[], None]) -> "Actor":
        actor = Actor(self, f"{self.name}/{name}", body)
        self.actors.append(actor)
        return actor

    def kill(self) -> None:
        """Called by the scheduler, or by an actor of another unit: takes effect at once, or when that one waits."""
        self.is_dead = True
        self.scheduler.after(0, self._end)

    def _end(self) -> None:
        for actor in self.actors:
            actor.end()

    def stop_for(self, seconds: float) -> None:
        self.stopped_until = max(self.stopped_until, self.scheduler.now + seconds)


class Actor:
    def __init__(self, unit: Unit, name: str, body: Callable[[], None]) -> None:
        self.unit, self.name = unit, name
        self.is_done = False
        self._scheduler = unit.scheduler
        self._body = body
        self._go = Lock()
        self._go.acquire()
        self._ticket = 0
        self._is_interruptible = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._resume_at(self._scheduler.now)

    def wait(self, seconds: float, *, is_interruptible: bool = False) -> None:
        """For so many seconds of the unit's own clock."""
        assert self._scheduler.current is self
        if self.unit.is_dead:
            raise Killed
        self._is_interruptible = is_interruptible
        self._resume_at(self._scheduler.now + max(seconds, 0.0) / self.unit.rate)
        self._scheduler.current = None
        self._scheduler.back.release()
        self._go.acquire()
        self._is_interruptible = False
        if self.unit.is_dead:
            raise Killed

    def wake(self) -> None:
        if self._is_interruptible:
            self._resume_at(self._scheduler.now)

    def end(self) -> None:
        if not self.is_done:
            self._pass_baton()

    def _resume_at(self, when: float) -> None:
        ticket = self._ticket
        self._scheduler.at(when, lambda: self._resume(ticket))

    def _resume(self, ticket: int) -> None:
        if ticket != self._ticket or self.is_done:
            return
        if self.unit.stopped_until > self._scheduler.now and not self.unit.is_dead:
            self._scheduler.at(self.unit.stopped_until, lambda: self._resume(ticket))
            return
        self._pass_baton()

    def _pass_baton(self) -> None:
        self._ticket += 1
        self._scheduler.current = self
        self._go.release()
        self._scheduler.back.acquire()
        if self.is_done:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.unit.is_dead:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_done = True
            self._scheduler.current = None
            self._scheduler.back.release()


class StopEvent(Event):
    """A threading.Event whose waits pass simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._waiting: Actor | None = None

    def set(self) -> None:
        super().set()
        if self._waiting is not None:
            self._waiting.wake()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self._waiting = self._scheduler.actor
            self._waiting.wait(timeout, is_interruptible=True)
            self._waiting = None
        return self.is_set()


class SlowBucket(FaultyBucket):
    """A client whose requests take time, before and after they have their effect: others act meanwhile, and the unit
    may be stopped or killed there.
    """

    def __init__(self, scheduler: Scheduler, objects: Objects, faults: BucketFaults) -> None:
        super().__init__(objects, scheduler.random, faults)
        self._scheduler = scheduler

    def list(self, prefix: str) -> Iterator[ListedObject]:
        listing = self._perform(f"list {prefix}", lambda: self.objects.listing(None))
        return iter([ListedObject(key, size) for key, size in sorted(listing.items()) if key.startswith(prefix)])

    def _act(self, request: str, act: Callable[[], T], is_write: bool) -> T:
        actor, random = self._scheduler.actor, self._scheduler.random
        is_slow = self.faults.lost > 0 and random.random() < 0.05
        self._sleep(actor, random)
        if self._scheduler.hesitates and request.startswith(TAKE_OVER) and self._scheduler.harsher is not None:
            self._sleep(actor, self._scheduler.harsher, HESITATION)
        actor.wait(random.uniform(0.3, 0.9) if is_slow else random.uniform(0.002, 0.05))
        try:
            found = super()._act(request, act, is_write)
        except BucketUnavailable:
            actor.wait(random.uniform(0.0, REQUEST_SECONDS_MAX))
            raise
        if self._is_answered_late(actor, is_write):  # others act between the effect and what follows from it
            actor.wait(random.uniform(0.002, 0.05))
        return found

    def _is_answered_late(self, actor: Actor, is_write: bool) -> bool:
        if not is_write:
            return self._sleep(actor, self._scheduler.random)
        if self._scheduler.harsher is not None:
            self._sleep(actor, self._scheduler.harsher)
        return True

    def _sleep(self, actor: Actor, random: Random, factor: float = 1.0) -> bool:
        if random.random() >= self._scheduler.sleeps * actor.unit.sleepiness * factor:
            return False
        actor.unit.stop_for(random.uniform(2.0, 15.0))
        return True
