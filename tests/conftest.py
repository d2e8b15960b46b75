"""What all tests share."""

import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.spark.run.class_archive import SWITCH, find_archive
from penstock.testing.seaweedfs import SeaweedFS
from tests.support import ports
from tests.support.mariadb_server import MariaDbServer, need_mariadb
from tests.support.postgres_server import PostgresServer, need_postgres
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tokens import TOKEN_FILE, set_token_variables

SLOW_MARKERS = ("process", "spark")
"""In the order in which they run, after the fast tests."""

SERVERS = frozenset({"mariadb_server", "mosquitto", "nats_server", "postgres_server", "rabbitmq_server", "seaweedfs"})
"""The fixtures of tests that need a server, which is a process."""

HANG_S = 60.0
"""So much longer than its time limit, a test has not noticed the limit."""

SESSION_GROUP = "spark"
"""The tests on the one Spark session, which run in one process."""

settings.register_profile(
    "any machine",
    deadline=None,  # how long an example takes says how busy the machine is, and nothing else
    derandomize=True,  # the same examples whenever it runs: to look for others is what campaigns are for
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Many of Spark's JVMs live for seconds: to optimize for a long life takes half of what they take."""

QUICK_SPARK = " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""Nor is code generated for plans that see a few rows. The pages in docs/ are followed with Spark's own settings."""


def pytest_configure() -> None:
    """What all processes inherit that the tests start. In the background Ctrl-C is ignored, unless we say otherwise."""
    set_token_variables()
    socket.socket.bind = ports.bind  # type: ignore[method-assign, assignment]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile what it imports
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)
    os.environ.setdefault(SWITCH, "use")  # script/test creates it
    archive = find_archive()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{QUICK_JAVA}{QUICK_SPARK} {archive.options() if archive else ''}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The signal of pytest-timeout does not reach a test that waits in uvloop: the process ends then, and xdist starts
    another one."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker and marker.args else float(item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + HANG_S, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first, then those that start and kill processes, those on Spark last. In several processes
    (script/test) the other way round: tests on Spark mostly wait, and the others fill the time.
    """
    for item in items:
        if not SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
    items.sort(key=_slowness, reverse=hasattr(config, "workerinput"))
    for item in items:
        if _shares_session(item):
            item.add_marker(pytest.mark.xdist_group(SESSION_GROUP))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: no collection of garbage need look through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _slowness(item: pytest.Item) -> int:
    found = [SLOW_MARKERS.index(marker.name) + 1 for marker in item.iter_markers() if marker.name in SLOW_MARKERS]
    return max(found, default=0) + _shares_session(item)


def _shares_session(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)  # before anybody writes the name down
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """xdist appends the group to a test's name: without it `--last-failed` finds the test again. Its own processes
    need the whole name.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ and report.nodeid.rfind("@") > report.nodeid.rfind("]"):
        report.nodeid = report.nodeid.rpartition("@")[0]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process set the variable to the token of the worker they find: undone at the end."""
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(TOKEN_FILE))


@pytest.fixture(autouse=True)
def _connections_of_tasks() -> Iterator[None]:
    """A test that runs the function of a task itself leaves no connection to the next one."""
    yield
    if python_worker := sys.modules.get("penstock.spark.python_worker"):
        python_worker.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL of all tests of this process: each uses names of its own. A test that kills it starts it again."""
    need_postgres()
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    """The MariaDB of all tests of this process: each has its own database. A test that kills it starts it again."""
    need_mariadb()
    server = MariaDbServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """The object store of all tests of this process. A test that kills it starts it again."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweedfs")) as running:
        yield running


@pytest.fixture
def s3_url(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix that no other test has. This process and those that it starts have the credentials."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return seaweedfs.url(f"tests/{uuid4().hex}")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with small files, stopped in order afterwards."""
    with running_worker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[CoordinatorClient]:
    """Talks to the worker's HTTP side."""
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", 5) as made:
        yield made


@pytest.fixture
def segments(worker: RunningWorker) -> Iterator[SegmentClient]:
    """Talks to its segment port."""
    with SegmentClient(worker.address) as made:
        yield made
