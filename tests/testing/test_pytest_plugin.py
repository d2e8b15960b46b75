"""The pytest plugin costs nothing before a test uses its fixture."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.java import find_java

TEST = """\
import sys
import penstock.testing

def test_nothing_heavy_is_imported():
    assert {"pyspark", "pyarrow", "numba", "numpy", "pandas", "penstock.worker"}.isdisjoint(sys.modules)
    assert "penstock.testing.pytest_plugin" in sys.modules
"""

WITH_SPARK = """\
from penstock import dead_letters
from penstock.testing import run_pipeline

SESSIONS = set()

def doubled(numbers):
    def double(row):
        return {"twice": 2 * int(row["value"])}
    return dead_letters.apply(numbers, double, "twice int", per="row")

def test_the_fixture_is_a_session(penstock_spark):
    SESSIONS.add(id(penstock_spark))
    assert penstock_spark.range(3).count() == 3

def test_pipelines_run_in_it(penstock_spark):
    SESSIONS.add(id(penstock_spark))
    result = run_pipeline(doubled, {"numbers": [b"1", b"x", b"3"]}, spark=penstock_spark)
    assert [row["twice"] for row in result.rows] == [2, 6]
    assert [one.value for one in result.dead_letters] == [b"x"]
    assert len(SESSIONS) == 1

def test_it_is_the_default(penstock_spark):
    from penstock.testing.spark_session import spark_session
    assert spark_session() is penstock_spark
"""


def test_pytest_does_not_load_it_by_itself() -> None:
    """It would rewrite the assertions of the whole package, in everybody's runs."""
    assert "pytest11" not in {point.group for point in distribution("penstock-streams").entry_points}


@pytest.mark.process
def test_a_run_that_does_not_use_it_imports_neither_spark_nor_a_worker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.pytest_plugin"]')
    (tmp_path / "test_light.py").write_text(TEST)
    done = ran(tmp_path, 120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_tests_of_a_user_share_a_session_which_ends_with_them(tmp_path: Path) -> None:
    try:
        find_java()
    except RequestError as error:
        pytest.skip(str(error))
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.pytest_plugin"]')
    (tmp_path / "test_with_spark.py").write_text(WITH_SPARK)
    done = ran(tmp_path, 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "Traceback" not in done.stderr


def ran(folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds)
