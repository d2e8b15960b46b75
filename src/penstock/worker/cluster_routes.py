"""The routes of the cluster, on owners and on standbys."""

from typing import Protocol

from starlette.requests import Request

from penstock.access.principals import Role
from penstock.protocol.api.cluster import ClusterStatus, Drain
from penstock.worker.api_route import ApiRoute, Subject, about
from penstock.worker.routes import get, post


class Clustered(Protocol):
    """What the routes need from a worker."""

    async def cluster(self) -> ClusterStatus:
        """Raises RequestError for a worker without a bucket."""
        ...

    async def drain(self, request: Drain) -> None:
        """Begins; `cluster` shows the progress. Raises RequestError if the shard cannot move."""
        ...


def routes(worker: Clustered) -> list[ApiRoute]:
    async def cluster(_: Request) -> ClusterStatus:
        """Show the members of the cluster, and who owns which shard."""
        return await worker.cluster()

    async def drain(_: str, body: Drain) -> None:
        """Move the shards away from a worker. Returns at once; GET /cluster shows the progress."""
        await worker.drain(body)

    return about(
        Subject.CLUSTER,
        get("/cluster", cluster),
        post("/cluster/drain", Drain, drain, role=Role.ADMIN, is_audited=True),
    )
