"""What SQL sinks know of windows: a pane may take the place of others, whose rows must go when its own row comes.

A session that has fired and then grows, or is joined with another one, fires again with other bounds. Its row names the
panes that it replaces, in the field `replaces`: a list of objects with `window_start` and `window_end`.
"""

from collections.abc import Collection

REPLACES = "replaces"

BOUNDS = ("window_start", "window_end")
"""The fields that the objects in `replaces` have, and the panes that they name."""


def applies_replaces(upsert: Collection[str]) -> bool:
    """Whether rows are found by a bound of their window: then those of replaced panes are deleted. Without `upsert` the
    table is a log of all panes, and whoever reads it applies `replaces`.
    """
    return not {*BOUNDS}.isdisjoint(upsert)


def nullable_keys(upsert: Collection[str]) -> list[str]:
    """The keys of a window, which may be null, unlike its bounds. Null is a key like any other, but no unique index
    says so: the sinks replace such rows themselves.
    """
    return [name for name in upsert if name not in BOUNDS]
