"""Pravega's own client and a cluster: the controller is in one shard, which moves from worker to worker."""

import json
from pathlib import Path

import pytest

from penstock.bucket.stores import open_bucket
from penstock.cluster.places import Places
from penstock.worker.directory import CONTROLLER_PLACE
from tests.pravega.conftest import Client, Controller, result, tell, wait_for
from tests.pravega.test_client import assert_in_order
from tests.support.bucket_worker import BucketWorker
from tests.support.tokens import TOKEN
from tests.worker.hosts import hosts

pytestmark = pytest.mark.process


def controller_port(host: BucketWorker) -> int:
    found: int = json.loads((host.data / "ports.json").read_text())["controller"]
    return found


def test_writers_and_readers_continue_while_the_shard_of_the_controller_moves_to_another_worker(tmp_path: Path) -> None:
    """The reader group keeps the address that it has got for its table."""
    pytest.importorskip("pravega_client", reason="Pravega's client has wheels for Python 3.11 on Linux alone")
    with hosts(tmp_path, 1, 1, options=("--controller-port", "0")) as made:
        ports = [controller_port(host) for host in made.all]
        client, controller = Client(f"tcp://127.0.0.1:{ports[0]}", TOKEN), Controller(ports[1], TOKEN)
        try:
            scope = client.new_scope(2)
            shard = Places(open_bucket(made.url)).find(CONTROLLER_PLACE)
            assert shard is not None
            owner = next(host for host in made.all if shard in made.shards_of(host))
            other = next(host for host in made.all if host is not owner)
            at = controller.call("getURI", streamInfo={"scope": scope, "stream": "s"})
            assert at.port == owner.segment_port
            reader = client.start("read_to_the_end", scope, "readers", 5)
            wait_for(reader, "reader is there")
            writer = client.start("write_until_told", scope, 5)
            wait_for(writer, "written 100")
            made.ask("/cluster/move", shard=shard, to=made.names[other])
            made.wait(lambda found: found["shards"][shard]["host"] == made.names[other])
            tell(writer)
            assert_in_order(result(reader), result(writer))
            at = controller.call("getURI", streamInfo={"scope": scope, "stream": "s"})
            assert at.port == other.segment_port
        finally:
            client.close()
            controller.close()
