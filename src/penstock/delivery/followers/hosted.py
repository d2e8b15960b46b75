"""`hosted:NAME`: a connector of an application. Delivery is given these sinks by whoever hosts the connectors."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.connectors.sink_api import Epoch, FollowingSink, SinkLost

MakeHosted = Callable[[str, str, str, Callable[[], None]], FollowingSink]
"""From the pipeline's name, the sink's, the connector's, and what to call when it can take again what it could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedOptions:
    name: str


class NotHosted:
    """Stands for one where no connectors are hosted: nothing of it is lost, and nothing goes on."""

    def __init__(self, options: HostedOptions, name: str) -> None:  # noqa: ARG002
        self._connector = options.name

    async def deliver(self, epoch: Epoch) -> None:  # noqa: ARG002
        raise SinkLost(f"connector {self._connector} is not deployed here", "Deploy its application: penstock apply")

    async def close(self) -> None:
        """There is nothing."""
