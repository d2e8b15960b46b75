"""Asks the driver of the pipelines, before anything changes, whether it could run another deployment."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.application.masking import masked
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import Deployment

FOLLOWED_SECONDS = 30.0
"""A driver polls the deployment twice a second, unless it is busy starting queries. One that is silent for longer
counts as gone."""

ANSWER_SECONDS_MAX = 60.0
"""The limit for a driver that is alive and plans many pipelines: meanwhile it is silent. It compares them again before
it stops any."""

_NO_ANSWER_HINT = "Apply it again; if that does not help, see the output of penstock run, or stop it before you apply."


@dataclass(slots=True)
class _Proposal:
    number: int
    deployment: Deployment
    is_seen: bool = False
    """A driver has received it and is planning its pipelines: its answer is awaited."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: Sequence[str] = ()


class DriverCheck:
    """One proposal at a time. Only in memory: a proposal ends with the request that made it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: float | None = None
        self._number = 0
        self._proposal: _Proposal | None = None

    def heard(self) -> None:
        """A driver has polled the deployment and the proposal."""
        self._heard = self._clock()
        if self._proposal is not None:
            self._proposal.is_seen = True

    def left(self) -> None:
        """The driver has ended properly."""
        self._heard = None
        if self._proposal is not None:
            self._proposal.is_seen = False

    @property
    def is_followed(self) -> bool:
        return self._heard is not None and self._clock() - self._heard <= FOLLOWED_SECONDS

    def proposed(self) -> dict[str, Any] | None:
        """The proposal that drivers should answer."""
        if self._proposal is None:
            return None
        return {"number": self._proposal.number, "deployment": masked(self._proposal.deployment).as_json()}

    def answer(self, number: int, refusals: Sequence[str]) -> None:
        """An answer to a proposal that has ended is ignored."""
        if self._proposal is not None and self._proposal.number == number:
            self._proposal.refusals = refusals
            self._proposal.answered.set()

    async def check(self, deployment: Deployment) -> None:
        """Raises RequestError with the reasons of a driver that cannot run it, and if a driver has seen it but does not
        answer in time. If no driver polls, nothing runs, and the next driver compares for itself.
        """
        if not self.is_followed:
            return
        self._number += 1
        proposal = self._proposal = _Proposal(self._number, deployment)
        try:
            await self._answered(proposal)
        finally:
            self._proposal = None
        if proposal.is_seen and not proposal.answered.is_set():
            raise RequestError(
                "nothing was changed: the driver of the pipelines did not confirm within "
                f"{ANSWER_SECONDS_MAX:.0f} s that it can run them",
                _NO_ANSWER_HINT,
            )
        if proposal.refusals:
            raise RequestError("\n".join(["nothing was changed: what runs now keeps running", *proposal.refusals]))

    async def _answered(self, proposal: _Proposal) -> None:
        deadline = self._clock() + ANSWER_SECONDS_MAX
        while not proposal.answered.is_set() and self._clock() < deadline and (proposal.is_seen or self.is_followed):
            try:
                async with asyncio.timeout(1.0):
                    await proposal.answered.wait()
            except TimeoutError:
                continue
