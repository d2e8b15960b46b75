"""`penstock cluster`: tables that can be used, and commands that return when shards have moved."""

import json
import time

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from penstock.cli import cluster
from penstock.cli.app import app
from penstock.core.errors import Unavailable
from penstock.protocol.api.cluster import ClusterStatus, Member, Place

A, B = "ingest-node-07-a210425fb0d7", "ingest-node-08-ff0c9880ef05"


def member(name: str) -> Member:
    addresses = {"connector": "ingest-node-07.example.org:7100", "http": "ingest-node-07.example.org:7102"}
    return Member(worker=name, addresses=addresses, shards=[], quiet_seconds=0.0, wants=1)


def place(shard: int, host: str, assigned: str) -> Place:
    return Place(
        shard=shard, owner=f"process {shard}", term=1, host=host, assigned=assigned, addresses=member(A).addresses
    )


def status(*places: Place) -> ClusterStatus:
    return ClusterStatus(url="s3://b/p", worker=A, workers=[member(A), member(B)], shards=[*places], leader=A)


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[ClusterStatus | Unavailable]:
    """What a worker says about the cluster, one after the other; the last one stays."""
    found = list[ClusterStatus | Unavailable]()

    def next_reply(_: str) -> ClusterStatus:
        one = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(one, Unavailable):
            raise one
        return one

    monkeypatch.setattr(cluster, "cluster_status", next_reply)
    monkeypatch.setattr(cluster, "_post", lambda *_: None)
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.001)
    return found


def test_names_and_addresses_are_whole_on_any_screen(replies: list[ClusterStatus | Unavailable]) -> None:
    replies.append(status(place(0, A, B), place(11, B, B)))
    for width in ("40", "80", "200"):
        shown = CliRunner().invoke(app, ["cluster", "status", "--worker", "w:1"], env={"COLUMNS": width}).output
        lines = [line.split() for line in shown.splitlines()]
        assert ["0", A, "→", B, *member(A).addresses.values()] in lines
        assert ["11", B, *member(A).addresses.values()] in lines


def test_a_command_waits_for_the_move_while_a_worker_does_not_answer(
    replies: list[ClusterStatus | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_REMEMBERED_SECONDS", 0.0)
    before = status(place(0, A, A), place(1, A, A))
    moving = replace(before, shards=[before.shards[0], place(1, A, B)])
    moved = replace(before, shards=[before.shards[0], place(1, B, B)])
    replies += [before, moving, Unavailable("the store is away"), moving, moved]
    result = CliRunner().invoke(app, ["cluster", "rebalance", "--worker", "w:1"])
    assert result.exit_code == 0, result.output
    assert "shard 1 moved" in result.output
    replies[:] = [before, moving, moved]
    result = CliRunner().invoke(app, ["cluster", "rebalance", "--worker", "w:1", "--json"])
    assert json.loads(result.stdout) == {"moved": [1]}


def test_a_reply_from_before_the_change_is_not_taken_for_the_result(
    replies: list[ClusterStatus | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    replies.append(status(place(0, A, A)))
    result = CliRunner().invoke(app, ["cluster", "rebalance", "--worker", "w:1"])
    assert "nothing moved" in result.output
    assert pauses == [0.6]


def test_a_move_ends_when_its_target_is_gone_or_another_worker_gets_the_shard(
    replies: list[ClusterStatus | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_REMEMBERED_SECONDS", 0.0)
    before = status(place(0, A, A))
    moving = status(place(0, A, B))
    silent = replace(moving, workers=[member(A), replace(member(B), quiet_seconds=7.0)])
    gone = replace(moving, workers=[member(A)])
    for ended, why in ((gone, f"worker {B} is gone"), (silent, "silent for 7 s"), (before, f"assigned to {A}")):
        replies[:] = [before, moving, ended]
        result = CliRunner().invoke(app, ["cluster", "move", "0", B, "--worker", "w:1"])
        assert isinstance(result.exception, Unavailable)
        assert why in str(result.exception)


def test_a_drain_ends_when_all_other_workers_are_drained_as_well(
    replies: list[ClusterStatus | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_REMEMBERED_SECONDS", 0.0)
    before = status(place(0, A, A), place(1, B, B))
    crossed = replace(before, workers=[replace(member(name), is_drained=True) for name in (A, B)])
    replies += [before, crossed]
    result = CliRunner().invoke(app, ["cluster", "drain", A, "--worker", "w:1"])
    assert isinstance(result.exception, Unavailable)
    assert "all other workers are drained or gone" in str(result.exception)


def test_problems_of_the_members_together_are_shown(replies: list[ClusterStatus | Unavailable]) -> None:
    replies.append(replace(status(place(0, A, A)), problems=["worker w can be reached on its own machine only"]))
    assert "on its own machine only" in CliRunner().invoke(app, ["cluster", "status", "--worker", "w:1"]).output
