"""What changed windows take over from existing state: which stored aggregate becomes which, and what stays closed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class StoredAggregate(NamedTuple):
    """An aggregate in the state of windows, identified by the name of its result and by what it computes."""

    name: str
    text: str
    """Function, columns, parameters and the type of its partials."""


class Matched(NamedTuple):
    """`places`: for each aggregate of the new plan its place in the stored one, None if it was added."""

    places: tuple[int | None, ...]
    removed: tuple[StoredAggregate, ...]
    changed: tuple[tuple[StoredAggregate, StoredAggregate], ...]
    """Stored and new ones that have the same name but compute something else. Such state cannot be taken over."""


def matched(stored: Sequence[StoredAggregate], new: Sequence[StoredAggregate]) -> Matched:
    """By name. A stored one without a counterpart is a renamed one if a new one computes the same."""
    names = {one.name: place for place, one in enumerate(stored)}
    places = [names.get(one.name) for one in new]
    changed = [(stored[at], one) for at, one in zip(places, new, strict=True) if at is not None and stored[at] != one]
    free = [place for place in range(len(stored)) if place not in places]
    for number, one in enumerate(new):
        renamed = next((place for place in free if stored[place].text == one.text), None)
        if places[number] is None and renamed is not None:
            places[number] = renamed
            free.remove(renamed)
    return Matched(tuple(places), tuple(stored[place] for place in free), tuple(changed))


# A longer lateness does not reopen windows: those that a shorter one has purged have lost their past. The runner knows
# where that was; the operators find it here while the pipeline's function builds them.

_CLOSED_TO: ContextVar[Mapping[str, int]] = ContextVar("closed_to", default={})  # noqa: B039  never changed in place


@contextmanager
def closing(closed_to_us: Mapping[str, int]) -> Iterator[None]:
    """Window operator → the end of the last windows that stay closed, for operators that are built in this context."""
    token = _CLOSED_TO.set(closed_to_us)
    try:
        yield
    finally:
        _CLOSED_TO.reset(token)


def closed_to(operator: str) -> int | None:
    return _CLOSED_TO.get().get(operator)
