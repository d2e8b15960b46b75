"""The shard moves between real workers while real sources send."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.bucket.stores import open_bucket
from penstock.cli.app import app
from penstock.cluster.records import WORKERS
from penstock.protocol.connector import (
    Ack,
    EndOfStream,
    Message,
    Migrate,
    Ok,
    Restart,
)
from tests.client.source.stored import stored_messages
from tests.support import http
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_moves import SOURCE, Workers, cluster, move_while_sending, sending, workers
from tests.worker.programs import Program

pytestmark = pytest.mark.process

STREAMS = 200


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def two(tmp_path: Path, url: str) -> Iterator[Workers]:
    with workers(tmp_path, url) as made:
        yield made


def ids(two: Workers) -> list[int]:
    return [one.id for one in stored_messages(two.serving().address, SOURCE)[1]]


def penstock(two: Workers, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["cluster", *arguments, "--worker", f"127.0.0.1:{two.any_port()}"])


# Members.


def test_a_standby_is_a_member_that_answers_on_its_ports_and_is_gone_when_it_stops(two: Workers) -> None:
    owner, standby = two.all
    for port in (owner.http_port, standby.http_port):
        found = cluster(port)
        assert {one["worker"]: one["shards"] for one in found["workers"]} == {
            two.names[owner]: [0],
            two.names[standby]: [],
        }
        (place,) = found["shards"]
        assert (place["shard"], place["owner"], place["term"], place["successor"]) == (0, two.names[owner], 1, "")
        assert place["addresses"]["http"] == f"127.0.0.1:{owner.http_port}"
    assert http.ask(standby.http_port, "GET", "/live")[0] == 200
    assert http.ask(standby.http_port, "GET", "/ready")[0] == 503
    status, body = http.ask(standby.http_port, "GET", "/status")
    assert status == 503
    assert json.loads(body)["hint"] == f"Use that worker: --worker 127.0.0.1:{owner.http_port}."
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", standby.segment_port), SECONDS_MAX)
    standby.stop()
    until(lambda: [one["worker"] for one in cluster(owner.http_port)["workers"]] == [two.names[owner]])


def test_the_record_of_a_standby_that_was_killed_is_removed_by_the_next_owner(tmp_path: Path, url: str) -> None:
    with workers(tmp_path, url, 3) as three:
        first, second, third = three.all
        third.kill()
        three.begin_drain(first, three.names[second])
        until(second.has_ports, lambda: second.said)
        keys = {f"{WORKERS}{three.names[one]}" for one in (first, second)}
        until(lambda: {one.key for one in open_bucket(url).list(WORKERS)} == keys)


def test_cluster_commands_show_the_map_and_refuse_what_is_not_possible(two: Workers) -> None:
    owner, standby = two.all
    shown = penstock(two, "status").output
    assert "1 shard on 2 workers" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert [two.names[owner], "0", f"127.0.0.1:{owner.connector_port}", f"127.0.0.1:{owner.http_port}"] in lines
    assert [two.names[standby], "standby", f"127.0.0.1:{standby.connector_port}"] in [line[:3] for line in lines]
    assert json.loads(penstock(two, "status", "--json").output)["shards"][0]["owner"] == two.names[owner]
    refused = str(penstock(two, "drain", two.names[standby]).exception)
    assert "is a standby: there is nothing to move away from it" in refused
    assert "is not in this cluster" in str(penstock(two, "drain", "nobody").exception)
    standby.stop()
    refused = str(penstock(two, "drain", two.names[owner]).exception)
    assert f"there is no other worker to which shard 0 of {two.names[owner]} can move" in refused
    status, body = http.ask(owner.http_port, "POST", "/cluster/drain", {"worker": two.names[owner]})
    assert status == 400
    assert b"there is no other worker" in body


def test_commands_that_meet_a_standby_name_the_owner(two: Workers) -> None:
    owner, standby = two.all
    by_address = CliRunner().invoke(app, ["status", "--worker", f"127.0.0.1:{standby.http_port}"])
    assert "is a standby" in str(by_address.exception)
    assert by_address.exception.hint == f"Use that worker: --worker 127.0.0.1:{owner.http_port}."  # type: ignore[union-attr]
    by_data = CliRunner().invoke(app, ["status", "--data", str(standby.data)])
    assert "is a standby: it does not serve its shard" in str(by_data.exception)
    assert "1 shard on 2 workers" in CliRunner().invoke(app, ["cluster", "status", "--data", str(standby.data)]).output


def test_drain_moves_the_shard_and_the_drained_worker_stays_a_standby(two: Workers) -> None:
    owner, standby = two.all
    drained = penstock(two, "drain", two.names[owner])
    assert drained.exit_code == 0, drained.output
    assert f"shard 0 has moved from {two.names[owner]} to {two.names[standby]}" in drained.output
    assert "sources end their streams" in drained.output or "moved" in drained.output
    assert two.serving() is standby
    assert not owner.has_ports()
    members = {one["worker"]: one for one in cluster(owner.http_port)["workers"]}
    assert members[two.names[owner]]["is_drained"]
    assert members[two.names[owner]]["shards"] == []
    standby.stop()
    until(owner.has_ports, lambda: owner.said)  # nobody else is there


def test_of_three_workers_the_chosen_one_takes_over(tmp_path: Path, url: str) -> None:
    with workers(tmp_path, url, 3) as three:
        for chosen in (three.all[2], three.all[1]):
            assert three.drain(three.names[chosen]) is chosen
        assert cluster(three.any_port())["shards"][0]["term"] == 3


# The wrong address.


def test_a_source_with_the_sdk_is_sent_from_a_standby_to_the_owner(two: Workers) -> None:
    standby = two.all[1]
    with sending(f"127.0.0.1:{standby.connector_port}", 3) as program:
        assert program.check(two.serving()) > 0


def test_a_program_that_announces_migrate_gets_migrate_before_ok(two: Workers) -> None:
    owner, standby = two.all
    with closing(Program(standby.connector_port, version="0.0.1+migrate")) as program:
        assert program.next() == Migrate("127.0.0.1", owner.connector_port)


def test_a_program_that_knows_restart_only_gets_the_owner_s_address(two: Workers) -> None:
    owner, standby = two.all
    with closing(Program(standby.connector_port)) as program:
        assert program.next() == Ok(0)
        assert program.next() == Restart(f"127.0.0.1:{owner.connector_port}")
        assert program.next() is None


def test_a_program_that_comes_back_has_not_understood_and_is_spliced(two: Workers) -> None:
    standby = two.all[1]
    with closing(Program(standby.connector_port)) as program:
        program.until(Restart)
    with closing(Program(standby.connector_port)) as program:
        assert program.open() == -1
        program.send_until_acked(0, 999)
        program.send(Message(1, 1000, 0, b"", b"last"))
        program.half_close()
        last = -1
        while (frame := program.next()) is not None:
            if isinstance(frame, Ack):
                last = max([last, *(one.point_of_reference for one in frame.acked)])
        assert last == 1000, "an end of one direction is passed on, and the other one goes on"
    assert ids(two) == list(range(1001))


def test_a_worker_that_is_started_in_place_of_a_dead_owner_sends_nobody_to_its_own_address(two: Workers) -> None:
    """Its sources wait until it has taken over."""
    owner, standby = two.all
    standby.stop()
    owner.kill()
    owner.begin()
    until(lambda: "waiting as a standby" in owner.said)
    with closing(Program(owner.connector_port, version="0.0.1+migrate")) as program:
        assert isinstance(program.next(), Ok)


def test_with_redirect_splice_nobody_is_sent_away(tmp_path: Path, url: str) -> None:
    with workers(tmp_path, url, 2, "--redirect", "splice") as two:
        with closing(Program(two.all[1].connector_port)) as program:
            assert program.open() == -1
            program.send_until_acked(0, 99)
        assert ids(two) == list(range(100))


# Moves.


def test_a_program_with_many_streams_is_moved_there_and_back_while_it_sends(tmp_path: Path, url: str) -> None:
    """`script/test --campaign migration` does it with 1,000 streams."""
    for line in move_while_sending(tmp_path, url, STREAMS, 2):
        print(line)


def test_a_program_that_knows_restart_only_is_moved_and_resumes(two: Workers) -> None:
    owner, standby = two.all
    with closing(Program(owner.connector_port)) as program:
        assert program.open() == -1
        program.send_until_acked(0, 49)
        two.begin_drain(owner)
        assert program.until(Restart) == Restart(f"127.0.0.1:{standby.connector_port}")
    with closing(Program(standby.connector_port)) as program:
        assert program.open() == 49
        program.send_until_acked(50, 99)
    assert ids(two) == list(range(100))


def test_a_spliced_program_is_moved_and_resumes(tmp_path: Path, url: str) -> None:
    """It knows one address. Whatever ends its connection, it connects there again."""
    with workers(tmp_path, url, 2, "--redirect", "splice") as two:
        owner, standby = two.all
        with closing(Program(standby.connector_port)) as program:
            program.open()
            program.send_until_acked(0, 49)
            two.begin_drain(owner)
            while program.next() is not None:
                pass
        until(lambda: two.owner() is standby, lambda: [one.said for one in two.all])
        two.serving()
        with closing(Program(standby.connector_port)) as program:
            assert program.open() == 49
            program.send_until_acked(50, 99)
        assert ids(two) == list(range(100))


def test_a_stream_that_a_migration_has_ended_is_not_marked_as_ended(two: Workers) -> None:
    """It stays in the watermark: a source with one more stream is not ahead of it."""
    with sending(two.seeds, 2) as program:
        owner = two.drain()
        program.wait_for_acks()
        found = http.get(owner.http_port, "/status")["sources"][SOURCE]
        assert found["streams"] == 2, found
        program.check(owner)


@pytest.mark.parametrize("moment", ["at once", "when sources end their streams"])
def test_if_the_owner_is_killed_in_the_middle_nothing_is_lost_or_stored_twice(two: Workers, moment: str) -> None:
    owner, standby = two.all
    with sending(two.seeds, 20) as program:
        two.begin_drain(owner)
        if moment != "at once":
            until(lambda: "the shard moves to worker" in owner.said)
        owner.kill()
        until(standby.has_ports, lambda: standby.said)
        standby.read_ports()
        program.wait_for_acks()
        assert program.check(standby) > 0


def test_if_the_successor_is_killed_in_the_middle_the_owner_takes_the_shard_back(two: Workers) -> None:
    owner, standby = two.all
    with sending(two.seeds, 20) as program:
        two.begin_drain(owner)
        until(lambda: "the shard moves to worker" in owner.said)
        standby.kill()
        until(lambda: two.owner() is owner and owner.has_ports(), lambda: owner.said)
        program.wait_for_acks()
        owner.read_ports()
        assert program.check(owner) > 0


def test_if_no_standby_answers_the_shard_stays_and_sources_do_not_notice(two: Workers) -> None:
    owner, standby = two.all
    with sending(two.seeds, 5) as program:
        standby.pause()
        refused: list[Result] = []
        draining = threading.Thread(target=lambda: refused.append(penstock(two, "drain", two.names[owner])))
        draining.start()
        draining.join(SECONDS_MAX)
        assert f"no answer from {two.names[standby]}: the shard stays here" in str(refused[0].exception)
        standby.resume()
        assert two.serving() is owner
        assert cluster(owner.http_port)["shards"][0]["term"] == 1
        program.wait_for_acks()
        assert program.check(owner) > 0


def test_a_worker_that_is_stopped_while_its_sources_leave_ends_at_once(two: Workers) -> None:
    owner, standby = two.all
    with closing(Program(owner.connector_port, version="0.0.1+migrate")) as program:
        program.open()
        program.send_until_acked(0, 9)
        two.begin_drain(owner)
        program.until(Migrate)
        program.send(EndOfStream(1))
        while program.until(Ack) != Ack(0):  # no MIGRATE_ACK follows
            pass
        owner.stop()
        assert program.next() is None
    until(standby.has_ports)
    assert ids(two) == list(range(10))


def test_of_two_drains_at_once_one_is_refused(two: Workers) -> None:
    owner, standby = two.all
    request = {"worker": two.names[owner], "to": ""}
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(http.ask, owner.http_port, "POST", "/cluster/drain", request) for _ in range(2)]
        statuses = sorted(one.result()[0] for one in asked)
    assert statuses[0] < 300 <= statuses[1]
    until(lambda: two.owner() is standby, lambda: owner.said)
    assert owner.is_running
