"""YAML applications deliver to PostgreSQL, SQLite and functions, as pipelines with URLs do: with their guarantees."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.protocol.api.deployment import Deployment
from tests.application.scene import Scene, killed_scene, scene_of
from tests.connectors.brokers.redis_server import RedisServer, need_redis
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import until

NUMBERS = range(2_000)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The directory of a server's socket."""
    return postgres_server.socket_folder


def application(folder: Path, sinks: str, quota: str = "1GiB") -> Deployment:
    """Reads a file of numbers, and sends each of them to all these sinks, which are YAML. A small quota makes small
    epochs.
    """
    (folder / "in.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in NUMBERS))
    names = [line.split("id: ")[1].split(",")[0] for line in sinks.splitlines() if "id: " in line]
    links = "".join(f"    pipeline/numbers/out: connector/{name}/in\n" for name in names[:1])
    if len(names) > 1:
        links = f"    pipeline/numbers/out: [{', '.join(f'connector/{name}/in' for name in names)}]\n"
    file = folder / "app.yaml"
    file.write_text(
        "connector:\n"
        "  - id: lines\n"
        "    type: file\n"
        f"    config: {{mode: read, path: {folder}/in.jsonl, chunk: 1KiB}}\n"
        "    codec: json\n"
        "    schema: number BIGINT\n"
        f"    quota: {quota}\n"
        "    interceptors: {in: [{type: split}]}\n"
        f"{sinks}"
        'pipeline: {id: numbers, spark: "system::passthrough"}\n'
        "binding:\n"
        "  id: main\n"
        "  links:\n"
        "    connector/lines/out: pipeline/numbers/in\n"
        f"{links}"
    )
    return load(file, KnownTypes(), {}).deployment


def postgres_rows(host: str, table: str) -> list[int]:
    with psycopg.connect(host=host, user="postgres", dbname="postgres") as connection:
        rows: list[Any] = connection.execute(f"SELECT number FROM {table} ORDER BY number").fetchall()
    return [number for (number,) in rows]


def make_table(host: str, table: str) -> None:
    with psycopg.connect(host=host, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (number bigint)")


def sqlite_rows(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        return [number for (number,) in database.execute("SELECT number FROM numbers ORDER BY number")]


def status(scene: Scene) -> dict[str, dict[str, Any]]:
    return {one["sink"]: one for one in json.loads(scene.command("sink", "list", "--json"))}


@pytest.mark.process
def test_an_application_delivers_to_postgresql(tmp_path: Path, postgres: str) -> None:
    make_table(postgres, "plain")
    config = f"{{host: {postgres}, user: postgres, dbname: postgres, table: plain}}"
    sinks = f"  - {{id: db, type: postgres, config: {config}, codec: json}}\n"
    with scene_of(tmp_path / "data", application(tmp_path, sinks)) as scene:
        until(lambda: len(postgres_rows(postgres, "plain")) == len(NUMBERS))
        assert postgres_rows(postgres, "plain") == [*NUMBERS]
        bound = status(scene)["db"]
        assert (bound["url"], bound["guarantee"], bound["votes"]) == ("db", "exactly-once", True)


def test_an_application_delivers_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "numbers.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE numbers (number INTEGER)")
    sinks = f"  - {{id: db, type: sqlite, config: {{path: {path}, table: numbers, format: json}}, codec: json}}\n"
    with scene_of(tmp_path / "data", application(tmp_path, sinks)) as scene:
        until(lambda: len(sqlite_rows(path)) == len(NUMBERS))
        assert sqlite_rows(path) == [*NUMBERS]
        assert status(scene)["db"]["guarantee"] == "exactly-once"


def test_an_application_calls_a_function(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "mine.py").write_text(
        "def keep(name, rows):\n"
        f"    with open({str(out)!r}, 'ab') as out:\n"
        "        out.write(b''.join(row.value + b'\\n' for row in rows))\n"
    )
    sinks = f"  - {{id: call, type: callback, config: {{path: {tmp_path}/mine.py, function: keep}}, codec: json}}\n"
    with scene_of(tmp_path / "data", application(tmp_path, sinks)) as scene:
        until(lambda: out.exists() and len(out.read_bytes().splitlines()) == len(NUMBERS))
        assert [json.loads(line)["number"] for line in out.read_bytes().splitlines()] == [*NUMBERS]
        assert (status(scene)["call"]["guarantee"], status(scene)["call"]["votes"]) == ("at-least-once", False)


@pytest.mark.process
def test_transactional_sinks_have_each_event_once_though_the_worker_is_killed(tmp_path: Path, postgres: str) -> None:
    make_table(postgres, "killed")
    path = tmp_path / "numbers.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE numbers (number INTEGER)")
    config = f"{{host: {postgres}, user: postgres, dbname: postgres, table: killed}}"
    sinks = (
        f"  - {{id: one, type: postgres, config: {config}, codec: json}}\n"
        f"  - {{id: other, type: sqlite, config: {{path: {path}, table: numbers, format: json}}, codec: json}}\n"
    )
    with killed_scene(tmp_path / "data", application(tmp_path, sinks)) as scene:
        for _ in range(2):
            seen = len(sqlite_rows(path))
            until(lambda seen=seen: len(sqlite_rows(path)) > seen or seen == len(NUMBERS))  # type: ignore[misc]
            scene.kill()
        until(lambda: len(sqlite_rows(path)) >= len(NUMBERS))
        until(lambda: len(postgres_rows(postgres, "killed")) >= len(NUMBERS))
        assert sqlite_rows(path) == postgres_rows(postgres, "killed") == [*NUMBERS]


@pytest.mark.process
def test_redis_and_sql_have_each_event_once_though_the_worker_and_their_servers_are_killed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    need_redis()
    host = postgres_server.socket_folder
    make_table(host, "by_sql")
    with RedisServer() as redis:
        url = f"postgresql+psycopg://postgres@/postgres?host={host}"
        sinks = (
            f"  - {{id: one, type: sql, config: {{url: '{url}', table: by_sql}}, codec: json}}\n"
            f"  - {{id: other, type: redis, config: {{unix_socket: {redis.socket}, stream: numbers}}, codec: json}}\n"
        )

        def restart_postgres() -> None:
            postgres_server.kill()
            postgres_server.start()

        def restart_redis() -> None:
            redis.kill()
            redis.start()

        def in_redis() -> list[int]:
            return [json.loads(value)["number"] for value in redis.values("numbers")]

        with killed_scene(tmp_path / "data", application(tmp_path, sinks, "20KiB")) as scene:
            for kill in (scene.kill, restart_redis, restart_postgres, scene.kill):
                seen = len(in_redis())
                until(lambda seen=seen: len(in_redis()) > seen or seen == len(NUMBERS))  # type: ignore[misc]
                kill()
            until(lambda: len(in_redis()) >= len(NUMBERS))
            until(lambda: len(postgres_rows(host, "by_sql")) >= len(NUMBERS))
            assert in_redis() == postgres_rows(host, "by_sql") == [*NUMBERS]


def test_a_connector_that_writes_elsewhere_continues_there_once_its_gap_is_accepted(tmp_path: Path) -> None:
    """Its name stays, so the sink stays bound; what was delivered to the first place is missing in the second."""
    first, second = tmp_path / "first", tmp_path / "second"
    before = "  - {id: files, type: file, config: {mode: write, path: PLACE}, codec: json}\n"
    deployment = application(tmp_path, before.replace("PLACE", str(first)))
    with scene_of(tmp_path / "data", deployment) as scene:
        until(lambda: status(scene)["files"]["lacking"] == 0 and status(scene)["files"]["sent"] > 0)
        scene.application.apply(application(tmp_path, before.replace("PLACE", str(second))))
        until(lambda: status(scene)["files"]["state"] == "DIVERGED", lambda: status(scene)["files"])
        assert "the sink has no epoch" in status(scene)["files"]["reason"]
        scene.command("sink", "rewind", "files", "--accept-gap", "--yes")
        until(lambda: status(scene)["files"]["state"] in ("READY", "IN ROUND"), lambda: status(scene)["files"])
