"""Short real runs: each contender's server, driven and checked as in the benchmark itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.append import CONTENDERS, Options, contenders
from bench.append import run as run_append
from bench.contender import Contender, Effort, LoadReport
from bench.contenders.bare import Bare
from bench.harness import BenchmarkFailed
from bench.load import Generators
from bench.processes import Server, start_server
from penstock.core.errors import Unavailable
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

SHORT = Effort(rounds=1, warmup_s=0.2, measure_s=1.0, probe_s=0.1, read_s=0.3, total_s_max=60)
"""Long enough that something is stored while the disk of a busy machine takes its time for a sync."""


def run(directory: Path, *only: str) -> LoadReport:
    return run_append(SHORT, directory, options=Options(only=only, connections=4))


def installed(name: str) -> Contender:
    (contender,) = contenders(Options(only=(name,)))
    if not contender.installed():
        pytest.skip(f"{name} is not installed: {contender.install}")
    return contender


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_acknowledged_event_is_stored(name: str, tmp_path: Path) -> None:
    """`run` itself compares what was acknowledged with what the server holds."""
    installed(name)
    (measurement,) = run(tmp_path, name).results[name]
    assert measurement.events > 0
    assert measurement.seconds == pytest.approx(SHORT.measure_s, rel=0.5)
    assert measurement.latencies_ms
    assert measurement.peak_rss_bytes > 1_000_000
    assert list(tmp_path.iterdir()) == []


def test_ours_is_compared_with_the_bare_loop(tmp_path: Path) -> None:
    ratios = run(tmp_path, "bare", "penstock").ratios()
    assert set(ratios) == {"bare", "read"}
    assert all(value > 0 for value in ratios.values())


def test_connections_may_be_shared_among_generators(tmp_path: Path) -> None:
    contender = Bare(10_000, 2)
    with Generators(2) as generators, contender.start(tmp_path) as server:
        generators.connect(contender.load(server), 3)
        load = generators.load(contender.window, 0.1, 0.1)
        assert contender.stored(server) == load.total >= load.events > 0


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(1)"]
    with pytest.raises(Unavailable, match="no room"):
        start_server(command, tmp_path, lambda: None)


def test_events_that_were_lost_fail_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Bare.stored
    monkeypatch.setattr(Bare, "stored", lambda self, server: honest(self, server) - 1)
    with pytest.raises(BenchmarkFailed, match="bare acknowledged"):
        run(tmp_path, "bare")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_dies_under_load_fails_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_then_die(self: Bare, server: Server) -> object:
        target = Bare.probe(self, server)
        server.process.kill()
        return target

    monkeypatch.setattr(Bare, "load", load_then_die)
    with pytest.raises((BenchmarkFailed, OSError)):
        run(tmp_path, "bare")
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
from pathlib import Path
from bench.append import Options, run
from bench.contender import Effort
if __name__ == "__main__":
    run(Effort(1, 30.0, 30.0, 0.1, 0.1, 60), Path(sys.argv[1]), options=Options(only=("bare",)))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_benchmark_leaves_neither_files_nor_servers(number: int, tmp_path: Path) -> None:
    data, script = tmp_path / "data", tmp_path / "script.py"
    data.mkdir()
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, str(script), str(data)], stderr=subprocess.DEVNULL, env=environment)
    try:
        wait_for_load(data)
        process.send_signal(number)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait()
    assert list(data.iterdir()) == []
    assert not commands_with(str(data))


def wait_for_load(data: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not any(log.stat().st_size > 1_000_000 for log in data.rglob("bare.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def commands_with(text: str) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [command for command in commands if text in command]
