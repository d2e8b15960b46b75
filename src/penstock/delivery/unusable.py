"""Stands for a sink that cannot be made here: whoever asks it is told why."""

from penstock.connectors.sink_api import Epoch, SinkLost, Transaction, Vote
from penstock.core.errors import PenstockError


class Unusable:
    """A sink of either sort. What is missing may come later: then it is bound again, or the worker is started anew."""

    is_open = False

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    async def open(self, decided: bytes) -> None:  # noqa: ARG002
        raise self._lost()

    async def prepare(self, epoch: Epoch) -> Vote:  # noqa: ARG002
        raise self._lost()

    async def commit(self, transaction: Transaction) -> None:  # noqa: ARG002
        raise self._lost()

    async def abort(self, transaction_id: bytes) -> None:
        """There is nothing."""

    async def end(self) -> None:
        """There is nothing."""

    async def deliver(self, epoch: Epoch) -> None:  # noqa: ARG002
        raise self._lost()

    async def close(self) -> None:
        """There is nothing."""

    def _lost(self) -> SinkLost:
        return SinkLost(f"{self._error} {self._error.hint}".rstrip())
