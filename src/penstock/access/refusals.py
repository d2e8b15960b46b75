"""Requests that were refused for lack of access: counted by port, and logged."""

import logging
from collections import Counter
from enum import Enum

from penstock.core.errors import PenstockError
from penstock.core.logs import quoted


class Port(Enum):
    HTTP = "http"
    SEGMENT = "segment"
    CONNECTOR = "connector"


class Refusals:
    """Of one worker, since it started. A reason never contains a credential."""

    def __init__(self) -> None:
        self._counts = Counter(dict.fromkeys(Port, 0))

    def counts(self) -> list[tuple[Port, int]]:
        return [*self._counts.items()]

    def count(self, port: Port) -> None:
        """For a refusal that is logged elsewhere."""
        self._counts[port] += 1

    def add(self, port: Port, peer: str, error: PenstockError, *, is_logged: bool = True) -> None:
        """Lines are limited for each port."""
        self.count(port)
        if is_logged:
            logging.getLogger(f"{__name__}.{port.value}").warning("%s was refused: %s", peer, quoted(error))
