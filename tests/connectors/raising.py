"""A module of another package that fails when it is imported."""

raise RuntimeError("somebody else's mistake")
