"""The wheel in a clean environment: the plain install works. `tests/docs/test_pages.py` tries the README's line."""

import json
import re
import signal
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from penstock import __version__
from tests.packaging.environments import ROOT, SECONDS_MAX, Environment, build_sdist, build_wheel

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("packaging")]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"), sdist)


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `uvx --from penstock-streams penstock` and `pip install penstock-streams` make: the wheel, and what it
    requires.
    """
    made = Environment(tmp_path_factory.mktemp("plain"), "penstock-streams")
    made.pip("install", str(wheel))
    made.pip("check")
    return made


def test_the_sdist_has_what_a_clone_has(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}
    assert {"src", "tests", "docs", "examples", "script", "pyproject.toml", "LICENSE", "constraints.txt"} <= tops
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or name.startswith("site/")]


def test_the_wheel_has_the_product_its_types_and_its_licence_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name.partition("/")[0] for name in names} == {
        "penstock",
        "pyspark_penstock",
        f"penstock_streams-{__version__}.dist-info",
    }
    assert {"penstock/py.typed", "penstock/cli/skeleton/pyproject.toml.txt", "penstock/examples/shop.yaml"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert f"Version: {__version__}\n" in found
    assert "Classifier: Typing :: Typed\n" in found


def test_the_command_runs_from_an_environment_that_has_the_wheel_alone(plain: Environment, tmp_path: Path) -> None:
    assert plain.run("penstock", "--version", cwd=tmp_path).stdout.strip() == f"penstock {__version__}"
    assert "Usage" in plain.run("penstock", "--help", cwd=tmp_path).stdout
    plain.run("penstock", "init", "house", cwd=tmp_path)
    assert "app.yaml is valid" in plain.run("penstock", "check", "house/app.yaml", cwd=tmp_path).stdout
    plain.run("penstock", "init", "--example", "shop", "shop", cwd=tmp_path)
    assert "shop.yaml is valid" in plain.run("penstock", "check", "shop/shop.yaml", cwd=tmp_path).stdout
    assert "pyspark is not installed" in plain.run("penstock", "doctor", cwd=tmp_path).stdout


def test_the_plain_install_sends_and_receives_without_spark_and_names_the_pip_command_for_the_rest(
    plain: Environment, tmp_path: Path
) -> None:
    worker = subprocess.Popen(
        [plain.folder / "bin" / "penstock", "worker", "--data", "data", *_ANY_PORTS],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        ports = _ports(tmp_path / "data" / "ports.json", worker)
        sent = plain.run("python", "-c", SENDING, f"127.0.0.1:{ports['connector']}", cwd=tmp_path)
        assert sent.stdout.split() == ["3"]
        read = plain.run("python", "-c", RECEIVING, f"127.0.0.1:{ports['segment']}", cwd=tmp_path)
        assert read.stdout.split() == ["1", "2"]
        shown = plain.run("penstock", "tail", "numbers", "-n", "2", "--data", "data", cwd=tmp_path).stdout
        assert shown.split() == ["2", "3"]
        assert "numbers" in plain.run("penstock", "status", "--data", "data", cwd=tmp_path).stdout
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS_MAX) == 0
    told = plain.run("python", "-c", IMPORTING, cwd=tmp_path).stdout
    assert "penstock.watch needs pyspark, which is not installed: pip install 'penstock-streams[spark]'" in told
    refused = plain.run("python", "-c", RUNNING, str(ROOT / "examples" / "count_words.py"), cwd=tmp_path).stdout
    assert "pip install 'penstock-streams[spark]'" in refused


def test_the_project_that_new_connector_writes_installs_and_passes(plain: Environment, tmp_path: Path) -> None:
    plain.link("pytest", "setuptools")
    project = tmp_path / "my-queue"
    plain.run("penstock", "new", "connector", "my-queue", cwd=tmp_path)
    plain.pip("install", "--no-build-isolation", "-e", ".[dev]", cwd=project)
    plain.pip("check")
    passed = plain.run("python", "-m", "pytest", "-q", cwd=project).stdout
    assert re.search(r"\d\d passed", passed), passed
    assert "The server's port." in plain.run("penstock", "connectors", "my-queue", cwd=project).stdout


_ANY_PORTS = ("--segment-port", "0", "--http-port", "0", "--connector-port", "0")

SENDING = """
import sys
from penstock.client import Message, Source
source = Source(sys.argv[1], source="numbers")
stream = source.stream("all", lambda after: (Message(n, b"%d" % n) for n in range((after or 0) + 1, 4)))
source.run()
print(stream.acknowledged)
"""

RECEIVING = """
import sys
from importlib.util import find_spec
from penstock.client.segments import SegmentClient
assert not [name for name in ("pyspark", "pyarrow", "pandas", "grpc", "httpx", "nicegui") if find_spec(name)]
with SegmentClient(sys.argv[1], token=open("data/token").read().strip()) as client:
    with client.appender("results", create=True) as appender:
        appender.append(b"1")
        appender.append(b"2")
    for event in client.events("results"):
        print(bytes(event.data).decode())
"""

IMPORTING = """
import penstock
from penstock import begin, pipeline, watermarked, windows
try:
    penstock.watch
except ImportError as error:
    print(error)
"""

RUNNING = """
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "penstock", "run", sys.argv[1]], capture_output=True, text=True)
assert done.returncode != 0
print(done.stderr)
"""


def _ports(file: Path, worker: "subprocess.Popen[bytes]") -> dict[str, int]:
    deadline = time.monotonic() + SECONDS_MAX
    while not file.exists():
        assert worker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found: dict[str, int] = json.loads(file.read_text())
    return found
