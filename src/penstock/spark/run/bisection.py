"""Finds the items of a list for which something fails, by trying it on halves of the list. Pure: no Spark, no worker.

Whatever fails for some items is expected to fail for any list that contains them. An item that fails alone is found
with about log2(n) trials; where only several items together fail, no half does, and the shortest run of items that
fails is found instead.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Try: TypeAlias = Callable[[int, int, Sequence[int]], T | None]
"""Tries the items from a first one up to a last one, exclusively, without some of them. Returns how that fails, or None
if it does not."""


@dataclass(frozen=True, slots=True)
class Failing(Generic[T]):
    """A run of items that fails: a single one, or the shortest that was found if none of its items fails alone."""

    start: int
    end: int
    how: T

    @property
    def is_single(self) -> bool:
        return self.end - self.start == 1


def failing(count: int, attempt: Try[T]) -> Iterator[Failing[T]]:
    """Those of `count` items that fail, each as soon as it is found. Runs that are not single fail only together: which
    of their items is the cause cannot be known. Ends when all that was not found passes together, or all is tried.
    """
    found: list[int] = []
    start, how, rest = 0, attempt(0, count, ()), None
    are_together = False
    while how is not None:
        one = _first(start, count, how, found, attempt)
        yield one
        start = one.end
        if one.is_single:
            found.append(one.start)
        are_together = are_together or not one.is_single
        rest = attempt(0, count, found) if not are_together and len(found) < count else None
        if rest is None and not are_together:
            return
        how = attempt(start, count, found) if start < count else None
    if rest is not None:
        yield _shortest(0, count, rest, found, attempt)


def _first(start: int, end: int, how: T, found: Sequence[int], attempt: Try[T]) -> Failing[T]:
    """In a run that fails. If the first half passes, the second one is halved without being tried: it need not be,
    unless items fail only together. Then a single item passes in the end, and the last run that failed is shortened.
    """
    known = Failing(start, end, how)
    while end - start > 1:
        middle = (start + end) // 2
        tried = attempt(start, middle, found)
        if tried is None:
            start = middle
        else:
            end = middle
            known = Failing(start, end, tried)
    if (known.start, known.end) == (start, end):
        return known
    tried = attempt(start, end, found)
    if tried is not None:
        return Failing(start, end, tried)
    return _shortest(known.start, known.end, known.how, found, attempt)


def _shortest(start: int, end: int, how: T, found: Sequence[int], attempt: Try[T]) -> Failing[T]:
    """The shortest run that fails and ends with the first items that fail together."""
    first = start
    end, how = _next_to(start, end, how, lambda middle: attempt(first, middle, found))
    start, how = _next_to(end, start, how, lambda middle: attempt(middle, end, found))
    return Failing(start, end, how)


def _next_to(passes: int, fails: int, how: T, attempt: Callable[[int], T | None]) -> tuple[int, T]:
    """Between a bound that passes and one that fails, on either side of it: that which fails next to one that passes,
    and how it fails.
    """
    while abs(fails - passes) > 1:
        middle = (passes + fails) // 2
        tried = attempt(middle)
        if tried is None:
            passes = middle
        else:
            fails, how = middle, tried
    return fails, how
