"""Which loads the running query of a pipeline has, and how far each wants to go: kept in memory, told again by each."""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field

from penstock.coordinator.messages import LoadState, Segments
from penstock.core.errors import Fenced, PipelineError

ONE_EACH = "Give each load an `input` of its own."


@dataclass(slots=True)
class Query:
    generation: int
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each input that a load has attached to."""
    upto: dict[str, Segments] = field(default_factory=dict)
    """Where each input ends; one that is not named goes on for ever."""
    loads: set[str] = field(default_factory=set)
    state: set[LoadState] = field(default_factory=set)
    """What its loads of control rows say of the operators that they are for; none, if it has no such operator."""
    past: set[str] = field(default_factory=set)
    """Loads of the queries before it in the same generation."""


class Queries:
    """All loads of a query attach before the first of them asks for a cut: what attaches later is a new query."""

    def __init__(self) -> None:
        self._queries: dict[str, Query] = {}

    def attach(self, name: str, generation: int, key: str, load: str, sources: Sequence[str], *, begins: bool) -> None:
        """`begins`: a query has asked in this generation already. Raises PipelineError for a second load of the same
        input with other sources: only one of the two would be read.
        """
        query = self.of(name, generation)
        if begins:
            query = self._queries[name] = Query(generation, past=query.past | query.loads)
        known = query.sources.setdefault(key, tuple(sources))
        if known != tuple(sources):
            raise PipelineError(
                f"input {key!r} of pipeline {name!r} is {', '.join(known)} in one load of the query, and "
                f"{', '.join(sources)} in another",
                ONE_EACH,
            )
        query.loads.add(load)

    def of(self, name: str, generation: int) -> Query:
        """What is known of the generation's query; nothing, if the worker was started after it."""
        query = self._queries.get(name)
        if query is None or query.generation != generation:
            query = self._queries[name] = Query(generation)
        return query

    def state(self, name: str, generation: int) -> Collection[LoadState]:
        """Of the generation's query; empty if nothing is known of it."""
        query = self._queries.get(name)
        return query.state if query is not None and query.generation == generation else ()

    def check(self, name: str, generation: int, load: str) -> None:
        """Raises Fenced for a load of a query that another one has followed in the same generation."""
        if load in self.of(name, generation).past:
            raise Fenced(
                f"another query of pipeline {name!r} has begun in generation {generation}",
                "Stop the older query, or begin a generation for each.",
            )

    def keep(self, names: Container[str]) -> None:
        """Forget all but these pipelines."""
        self._queries = {name: query for name, query in self._queries.items() if name in names}
