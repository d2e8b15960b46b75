"""What the coordinator needs of whoever acknowledges messages to sources, and how it is told."""

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.coordinator.machine.effects import Release
from penstock.protocol.stored.names import Form, Source


class Completion(Protocol):
    """The acknowledgements of one connector. Offsets are those of its segments; one that is not named is at 0."""

    def hold(self, start: Mapping[str, int]) -> None:
        """Pipelines read the connector: acknowledge no more than what they have completed, which is this."""
        ...

    def advance(self, ends: Mapping[str, int]) -> None:
        """All of them have completed this."""
        ...

    def let_go(self) -> None:
        """No pipeline reads it any more."""
        ...


Completions = Callable[[str], Completion]
"""A connector's, by its name; also before there is such a connector."""


class Releases:
    """Tells each connector when it is held, how far it is released, and when it is held no more."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._held: set[str] = set()

    def perform(self, release: Release) -> None:
        source = Source.parse(release.source)
        if source.form is not Form.CONNECTOR:
            return
        completion = self._completions(source.name)
        if release.segments is None:
            self._held.discard(source.name)
            completion.let_go()
        elif source.name in self._held:
            completion.advance(release.segments)
        else:
            self._held.add(source.name)
            completion.hold(release.segments)
