"""The page of the cluster, with hosts, a shard that moves, and what is wrong."""

from msgspec.structs import replace

from penstock.dashboard.deployed_pages import cluster_facts, member_row, shard_row
from penstock.protocol.api.cluster import Move
from tests.cli.test_cluster import A, B, member, place, status


def test_hosts_have_their_shards_and_a_drained_one_says_so() -> None:
    host = replace(member(A), is_drained=True, quiet_seconds=7.5)
    places = [place(0, A, A), place(1, B, B), place(2, A, B)]
    assert member_row(host, places) == {
        "worker": A,
        "kind": "host",
        "address": "ingest-node-07.example.org:7102",
        "shards": "0, 2 (drained)",
        "quiet": "7.5 s",
    }
    assert member_row(replace(host, wants=None, host=A), places)["kind"] == "shard"
    assert member_row(replace(host, wants=None), places)["kind"] == "worker"


def test_a_shard_is_where_it_is_until_it_has_moved() -> None:
    assert shard_row(place(0, A, A)) == {"shard": 0, "host": A, "term": 1, "state": "served"}
    assert shard_row(place(0, A, B))["state"] == f"moves to {B}"
    assert shard_row(place(3, "", ""))["host"] == "process 3"


def test_the_last_move_has_its_step_and_why_it_has_failed() -> None:
    found = status(place(0, A, B))
    assert cluster_facts(found) == [("Bucket", "s3://b/p"), ("Leader", A), ("Asked", A)]
    move = Move(shard=0, to=B, step="handing over", is_over=False, sessions=2)
    assert cluster_facts(replace(found, move=move))[-1] == ("Last move", f"shard 0 to {B}: handing over")
    failed = replace(move, is_over=True, failure="it did not answer")
    said = f"shard 0 to {B}: handing over: it did not answer"
    assert cluster_facts(replace(found, move=failed))[-1] == ("Last move", said)
