"""What follows from a command, for the service to carry out."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.coordinator.messages import Segments


@dataclass(frozen=True, slots=True)
class Merges:
    """Each (target, source): in the record that holds the command."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """How far every pipeline has completed the source's segments; None: no pipeline reads it any more.
    To be done when the command is durable.
    """

    source: str
    segments: Segments | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """What may be given up, of each segment the bytes below an offset."""

    segments: Segments


@dataclass(frozen=True, slots=True)
class Sweep:
    """Staged segments whose names begin so are of no use any more."""

    prefix: str


Effect: TypeAlias = Merges | Release | Truncate | Sweep
