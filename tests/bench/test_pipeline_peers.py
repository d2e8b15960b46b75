"""Other processors: found where they are installed, and trusted only if they count correctly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import pipeline, remote
from bench.harness import BenchmarkFailed
from bench.pipeline import BYTEWAX, FLINK, Effort, Package, Peer, expected, find_others, find_python, peers
from bench.pipeline_flow import Events

pytestmark = pytest.mark.process

HERE = Path(sys.executable)
EVENTS = Events(count=5_000, keys=10, per_ms=10)
ABSENT = Package("absent", "no_such_module", "no-such-module==1")
TINY = Effort(1, 5_000, 100, 5_000, 5_000, 5_000, 5_000, remote.Effort(0, 5_000, 0), total_s_max=0)

COUNTS = """
import json, sys
from collections import Counter
count, keys, per_ms, off = map(int, sys.argv[1:])
cells = Counter((n // per_ms // 60000, n * 48271 % 65521 % keys) for n in range(count)).values()
print("words before the result")
told = {"seconds": 0.5, "results": len(cells), "counted": sum(cells) + off, "squares": sum(n * n for n in cells)}
print(json.dumps(told))
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipeline, "PROGRAMS", tmp_path)
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "fails.py").write_text("raise SystemExit('out of order')")
    return tmp_path


def peer(program: str, off: int = 0) -> Peer:
    return Peer("other", ABSENT, program, EVENTS, (off,))


@pytest.mark.usefixtures("programs")
def test_a_correct_count_gives_a_rate() -> None:
    assert peer("counts.py").count(HERE).events_per_s == 10_000


@pytest.mark.usefixtures("programs")
def test_a_wrong_count_fails_the_benchmark() -> None:
    with pytest.raises(BenchmarkFailed, match="5001"):
        peer("counts.py", off=1).count(HERE)


@pytest.mark.usefixtures("programs")
def test_a_program_that_fails_reports_why() -> None:
    with pytest.raises(BenchmarkFailed, match="out of order"):
        peer("fails.py").count(HERE)


def test_figures_are_those_of_the_independent_count() -> None:
    """The keys of 0 to 3 are 0, 48271, 31021 and 13771 mod 2: one and three."""
    assert expected(Events(4, 2, 1)) == {"results": 2, "counted": 4, "squares": 10}


def test_an_interpreter_is_taken_only_if_it_can_import_the_package(tmp_path: Path) -> None:
    present = Package("present", "json", "")
    assert find_python(present, None) == HERE
    assert find_python(present, HERE) == HERE
    assert find_python(ABSENT, None) is None
    with pytest.raises(BenchmarkFailed, match="cannot import no_such_module"):
        find_python(ABSENT, HERE)
    with pytest.raises(BenchmarkFailed, match="cannot import json"):
        find_python(present, tmp_path / "python")


def test_an_environment_beside_ours_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ENVIRONMENTS", tmp_path)
    python = ABSENT.environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    assert find_python(ABSENT, None) == python
    python.write_text("#!/bin/sh\nexit 1\n")
    assert find_python(ABSENT, None) is None


def test_a_missing_peer_is_skipped_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ENVIRONMENTS", tmp_path)
    found, skipped = find_others(TINY)
    assert found == []
    assert "pip install bytewax==" in skipped["bytewax"]
    assert "pip install apache-flink==" in skipped["flink_sql"]


def test_the_programs_import_nothing_of_ours() -> None:
    for one in peers(TINY):
        text = (pipeline.PROGRAMS / one.program).read_text()
        assert "import penstock" not in text
        assert "from penstock" not in text


def test_the_script_installs_the_versions_it_names() -> None:
    script = (Path(__file__).parents[2] / "script" / "bench").read_text()
    for package in (BYTEWAX, FLINK):
        assert f"contender {package.name} {package.requirement}\n" in script
    subprocess.run(["bash", "-n", Path(__file__).parents[2] / "script" / "bench"], check=True)


@pytest.mark.parametrize("one", peers(TINY), ids=lambda one: one.name)
def test_the_real_pipeline_counts_correctly(one: Peer) -> None:
    given = os.environ.get(f"PENSTOCK_TEST_{one.package.name.upper()}_PYTHON")
    python = find_python(one.package, Path(given) if given else None)
    if python is None:
        pytest.skip(f"{one.package.name} is not installed: {one.package.install}")
    assert one.count(python).events == 5_000
