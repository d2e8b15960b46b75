"""An application with an http-server, and clients that post to it."""

from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count

from penstock.bucket.stores import open_bucket
from penstock.cluster.places import Kind, Places, Thing
from penstock.protocol.api.deployment import PASSTHROUGH, ConnectorSpec, Deployment, End, Link, PipelineSpec
from tests.client.source.stored import stored_messages
from tests.support.waiting import SECONDS_MAX
from tests.worker.hosts import Hosts

SOURCE = "hits"


def listening(port: int) -> ConnectorSpec:
    return ConnectorSpec(
        name=SOURCE,
        id=SOURCE,
        instance="01",
        type="http-server",
        config={"port": port, "path": "/hits"},
        codec="json",
        partitions=2,
        listen="every-worker",
    )


def deployed(spec: ConnectorSpec) -> Deployment:
    """Its events are read."""
    pipeline = PipelineSpec(name="p", id="p", instance="01", spark=PASSTHROUGH)
    link = Link(End("connector", SOURCE, "out"), End("pipeline", "p", "in"))
    return Deployment(connectors={SOURCE: spec}, pipelines={"p": pipeline}, links=(link,))


class Clients:
    """Each request has a connection of its own, and its own payload."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = count()
        self.answered: list[bytes] = []

    def post(self) -> bool:
        """Whether it is stored."""
        payload = b'{"number": %d}' % next(self._numbers)
        connection = HTTPConnection("127.0.0.1", self._port, timeout=SECONDS_MAX)
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("POST", "/hits", payload, {"Content-Type": "application/json"})
            if connection.getresponse().status < 300:
                self.answered.append(payload)
                return True
        return False


def stored(made: Hosts) -> list[dict[int, list[bytes]]]:
    """By partition: stream → payloads."""
    shards = made.settle()["shards"]
    found = []
    for number, shard in enumerate(Places(open_bucket(made.url)).find_partitions(Thing(Kind.SOURCE, SOURCE))):
        name = SOURCE if not number else f"{SOURCE}#{number}"
        messages = stored_messages(shards[shard]["addresses"]["segment"], name)
        found.append({stream_id: [one.payload for one in ones] for stream_id, ones in messages.items()})
    return found
