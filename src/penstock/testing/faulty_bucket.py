"""An object store for simulations that fails in all the ways that object stores do, and in the same way for the same
seed.

Several clients share one `Objects`; each has its faults, its own hook before each request, and ends by itself:

- a request fails before it has an effect, after it, or its effect comes later, when the client has long given up;
- a request is throttled; a listing is stale;
- `crash_at` stops the client at its n-th request, before or after its effect;
- `before_each` is called with each request: it may raise, or let another client do anything in between.

For one thread only: with more, the same seed would not produce the same run twice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from penstock.bucket.objects import ListedObject, NoSuchObject, ObjectExists, StoredObject, VersionChanged
from penstock.core.errors import BucketThrottled, BucketUnreachable
from penstock.core.types import Buffer
from penstock.testing.faulty_files import SimulatedCrash

T = TypeVar("T")

_HISTORY_MAX = 8
"""Old listings that a stale one is drawn from."""


class Objects:
    """What the store has. Writes are whole, and each gets a version."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.delayed: list[Callable[[], object]] = []
        """Writes that have not had their effect yet."""
        self._versions = 0
        self._listings: list[dict[str, int]] = []

    def get(self, key: str) -> StoredObject:
        try:
            return self.objects[key]
        except KeyError:
            raise NoSuchObject(key) from None

    def create(self, key: str, data: bytes) -> str:
        if key in self.objects:
            raise ObjectExists(key)
        return self._put(key, data)

    def replace(self, key: str, data: bytes, version: str) -> str:
        if key not in self.objects or self.objects[key].version != version:
            raise VersionChanged(key)
        return self._put(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        self._remember()
        for key in keys:
            self.objects.pop(key, None)

    def _put(self, key: str, data: bytes) -> str:
        self._remember()
        self._versions += 1
        self.objects[key] = StoredObject(data, str(self._versions))
        return str(self._versions)

    def _remember(self) -> None:
        self._listings.append({key: len(stored.data) for key, stored in self.objects.items()})
        del self._listings[:-_HISTORY_MAX]

    def listing(self, random: Random | None) -> dict[str, int]:
        """As it is, or as it was a few changes ago."""
        if random is None or not self._listings:
            return {key: len(stored.data) for key, stored in self.objects.items()}
        return random.choice(self._listings)


@dataclass(slots=True)
class BucketFaults:
    """Probabilities, for each request."""

    lost: float = 0.0
    """It fails, without an effect."""
    unanswered: float = 0.0
    """It fails, with its effect."""
    delayed: float = 0.0
    """It fails, and a write has its effect later, or never."""
    throttled: float = 0.0
    stale: float = 0.0
    """Of a listing."""


class FaultyBucket:
    """One client of the objects."""

    def __init__(
        self, objects: Objects | None = None, seed: int | Random = 0, faults: BucketFaults | None = None
    ) -> None:
        self.objects = objects if objects is not None else Objects()
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.faults = faults or BucketFaults()
        self.before_each: Callable[[str], None] = lambda _: None
        self.requests = 0
        self.url = "memory://simulation"
        self._crash_at: int | None = None
        self._ended = False

    def crash_at(self, request: int) -> None:
        """Raise SimulatedCrash in that request, counted from 1, and in all later ones."""
        self._crash_at = request

    def end(self) -> None:
        self._ended = True

    def get(self, key: str) -> StoredObject:
        return self._perform(f"get {key}", lambda: self.objects.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._perform(f"get {key}", lambda: self.objects.get(key).data[start : start + length])

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        data = b"".join(buffers)
        return self._perform(f"create {key}", lambda: self.objects.create(key, data), is_write=True)

    def replace(self, key: str, data: bytes, version: str) -> str:
        return self._perform(f"replace {key}", lambda: self.objects.replace(key, data, version), is_write=True)

    def delete(self, keys: Sequence[str]) -> None:
        """Half of them in one request, as stores have a limit: it may end in between."""
        middle = len(keys) // 2
        for some in (keys[:middle], keys[middle:]):
            if some:
                self._perform(f"delete {some[0]}", partial(self.objects.delete, some), is_write=True)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        stale = self.random if self.faults.stale and self.random.random() < self.faults.stale else None
        listing = self._perform(f"list {prefix}", lambda: self.objects.listing(stale))
        return iter([ListedObject(key, size) for key, size in listing.items() if key.startswith(prefix)])

    def _perform(self, request: str, act: Callable[[], T], *, is_write: bool = False) -> T:
        self._check_alive()
        self.requests += 1
        self.before_each(request)
        self._check_alive()
        self._have_delayed_effects()
        if self.requests == self._crash_at:
            self.end()
            if self.random.random() < 0.5:
                act()
            raise SimulatedCrash(f"in request {self.requests}: {request}")
        return self._act(request, act, is_write)

    def _act(self, request: str, act: Callable[[], T], is_write: bool) -> T:
        faults, drawn = self.faults, self.random.random()
        if (drawn := drawn - faults.lost) < 0:
            raise BucketUnreachable(f"{request}: timed out")
        if (drawn := drawn - faults.unanswered) < 0:
            _quietly(act)
            raise BucketUnreachable(f"{request}: timed out")
        if (drawn := drawn - faults.delayed) < 0:
            if is_write:
                self.objects.delayed.append(act)
            raise BucketUnreachable(f"{request}: timed out")
        if drawn < faults.throttled:
            raise BucketThrottled(f"{request}: slow down")
        return act()

    def _have_delayed_effects(self) -> None:
        delayed = self.objects.delayed
        while delayed and self.random.random() < 0.2:
            _quietly(delayed.pop(self.random.randrange(len(delayed))))

    def _check_alive(self) -> None:
        if self._ended:
            raise SimulatedCrash("this process has ended")


def _quietly(act: Callable[[], object]) -> None:
    with suppress(NoSuchObject, ObjectExists, VersionChanged):
        act()
