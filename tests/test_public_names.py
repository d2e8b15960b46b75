"""What `dir()` and completion show can be imported, and Spark is imported no sooner than it is used."""

import subprocess
import sys
from importlib import import_module

import pytest

SHOWN = {"begin", "pipeline", "watermarked", "windows"}


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("package", ["penstock", "penstock.spark", "penstock.windows"])
def test_what_dir_shows_can_be_imported(package: str) -> None:
    module = import_module(package)
    public = {name for name in dir(module) if not name.startswith("_")}
    assert {*module.__all__} - {"__version__"} <= public
    for name in public:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", ["penstock", "penstock.spark"])
def test_the_names_of_the_first_hour_are_shown_before_anything_is_imported(package: str) -> None:
    shown = python(f"import {package} as p, sys; print(*dir(p)); print('pyspark' in sys.modules)")
    names, has_spark = shown.stdout.splitlines()
    assert {*names.split()} >= SHOWN
    assert has_spark == "False"


@pytest.mark.parametrize("package", ["penstock", "penstock.spark"])
def test_a_name_is_the_same_whatever_was_imported_before_it(package: str) -> None:
    done = python(
        f"import penstock.spark.watermark, penstock.windows\n"
        f"from {package} import begin, pipeline, watermarked, windows\n"
        f"print(callable(begin), callable(pipeline), callable(watermarked), callable(windows.tumbling))"
    )
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_without_spark_a_name_that_needs_it_names_the_pip_command() -> None:
    done = python("import sys; sys.modules['pyspark'] = None\nfrom penstock.spark import watch")
    assert done.returncode == 1
    assert "penstock.spark.watch needs pyspark" in done.stderr
    assert "pip install 'penstock-streams[spark]'" in done.stderr


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'pipelin'"):
        import_module("penstock").pipelin  # noqa: B018


@pytest.mark.parametrize("module", ["penstock.spark.source.stream", "penstock.spark.sink.writer"])
def test_the_processes_beside_the_driver_import_neither_kernels_nor_arrow(module: str) -> None:
    """Spark starts them for each query, and the query waits for them."""
    code = f"import sys, {module}; print({{'numba', 'numpy', 'pyarrow', 'pandas'}} & sys.modules.keys())"
    assert python(code).stdout == "set()\n"


def test_a_window_imports_no_kernels() -> None:
    """Spark starts a process for each of its stages on each core; only one that reads late events again needs them."""
    assert python("import sys, penstock.windows.stages; print('numba' in sys.modules)").stdout == "False\n"
