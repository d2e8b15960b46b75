"""Hosts with shard processes: shards and sources are spread, and go where hosts are lost, join, and are drained."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.worker.bucket_moves import sending
from tests.worker.hosts import children, hosts, is_running, kill

pytestmark = pytest.mark.process

SOURCES = ("red", "green", "blue", "white", "black", "yellow")


def test_what_a_killed_host_had_is_served_by_another_one(tmp_path: Path) -> None:
    with hosts(tmp_path, 2, 2) as made, ExitStack() as stack:
        first, second = made.all
        assert [len(made.shards_of(one)) for one in made.all] == [2, 2]
        programs = [stack.enter_context(sending(made.seeds, 2, name)) for name in SOURCES]
        assert len({made.place_of(name) for name in SOURCES}) > 1
        pids = children(first.pid)
        assert len(pids) == 2
        first.kill()
        until(lambda: not any(map(is_running, pids)), made.said)  # the children of a killed host end
        made.settle()
        assert sorted(made.shards_of(second)) == [0, 1, 2, 3]
        for one in programs:
            one.wait_for_acks()
        for one in programs:
            assert made.check(one)


def test_shards_follow_a_join_a_move_and_a_drain(tmp_path: Path) -> None:
    with hosts(tmp_path, 2) as made, ExitStack() as stack:
        programs = [stack.enter_context(sending(made.seeds, 2, name)) for name in SOURCES[:3]]
        second = made.add(0)  # adds nothing, so it gets nothing
        assert made.shards_of(second) == []
        made.ask("/cluster/move", shard=0, to=made.names[second])
        made.wait(lambda found: found["shards"][0]["host"] == made.names[second])
        for one in programs:
            one.wait_for_acks()
        made.ask("/cluster/rebalance")
        made.wait(lambda found: {one["host"] for one in found["shards"]} == {made.names[made.all[0]]})
        made.ask("/cluster/drain", worker=made.names[made.all[0]])
        made.wait(lambda found: {one["host"] for one in found["shards"]} == {made.names[second]})
        for one in programs:
            one.wait_for_acks()
        for one in programs:
            assert made.check(one)


def test_a_killed_shard_process_is_started_again(tmp_path: Path) -> None:
    with hosts(tmp_path, 1) as made, sending(made.seeds, 2) as program:
        (pid,) = children(made.all[0].pid)
        kill(pid)
        until(lambda: [one for one in children(made.all[0].pid) if one != pid and is_running(one)], made.said)
        program.wait_for_acks()
        assert made.check(program)
