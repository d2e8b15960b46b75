"""The pytest plugin costs nothing before a test uses its fixture."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

TEST = """\
import sys
import penstock.testing

def test_nothing_heavy_is_imported():
    assert {"pyspark", "pyarrow", "numba", "numpy", "pandas", "penstock.worker"}.isdisjoint(sys.modules)
    assert "penstock.testing.pytest_plugin" in sys.modules
"""


def test_pytest_does_not_load_it_by_itself() -> None:
    """It would rewrite the assertions of the whole package, in everybody's runs."""
    assert "pytest11" not in {point.group for point in distribution("penstock-streams").entry_points}


@pytest.mark.process
def test_a_run_that_does_not_use_it_imports_neither_spark_nor_a_worker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.pytest_plugin"]')
    (tmp_path / "test_light.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
