"""A user's file is loaded, and its errors are shown at the user's own lines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.failures import load_pipelines, shown_at_the_users_line, silence_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWO = """
from penstock.spark import pipeline
import beside

@pipeline
def second(b): return beside.same(b)

@pipeline(name="first")
def other(a): return a

alias = second
"""


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_pipelines_are_listed_once_each_in_the_order_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, "def same(x): return x", "beside.py")
    found = load_pipelines(written(tmp_path, TWO))
    assert [pipeline.name for pipeline in found] == ["second", "first"]
    assert found[0](5) == 5, "modules beside the file are found"


def test_a_file_may_have_the_name_of_a_module(tmp_path: Path) -> None:
    (found,) = load_pipelines(
        written(tmp_path, "from penstock.spark import pipeline\n@pipeline\ndef f(a): return a", "json.py")
    )
    assert found.name == "f"


def test_an_error_shows_the_users_lines_and_none_of_ours(tmp_path: Path) -> None:
    text = "from penstock.spark import pipeline\n\ndef fail():\n    return 1 / 0\n\nfail()\n"
    with pytest.raises(RequestError) as caught:
        load_pipelines(written(tmp_path, text))
    shown = str(caught.value)
    assert f'File "{tmp_path / "mine.py"}", line 6' in shown
    assert "line 4, in fail" in shown
    assert shown.endswith("ZeroDivisionError: division by zero")
    assert "penstock/spark" not in shown
    assert "importlib" not in shown


def test_a_bad_declaration_shows_the_line_and_the_hint(tmp_path: Path) -> None:
    text = "from penstock.spark import pipeline\n@pipeline(mode='update')\ndef f(a): return a\n"
    with pytest.raises(RequestError) as caught:
        load_pipelines(written(tmp_path, text))
    assert "mine.py" in str(caught.value)
    assert str(caught.value).endswith("mode 'update' is not supported")
    assert "append" in caught.value.hint


def test_a_syntax_error_shows_where(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"mine.py.*, line 2\n(.|\n)*SyntaxError"):
        load_pipelines(written(tmp_path, "x = 1\ndef f(:\n"))


def test_a_file_without_pipelines_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no pipeline"):
        load_pipelines(written(tmp_path, "x = 1"))
    with pytest.raises(RequestError, match=r"file .* not found"):
        load_pipelines(tmp_path / "nowhere.py")


def test_two_pipelines_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "from penstock.spark import pipeline\n@pipeline\ndef f(a): pass\n@pipeline(name='f')\ndef g(a): pass\n"
    with pytest.raises(RequestError, match="two pipelines 'f'"):
        load_pipelines(written(tmp_path, text))


def test_code_that_needs_spark_at_import_is_reported_with_an_alternative(tmp_path: Path) -> None:
    text = "raise RuntimeError('[SESSION_OR_CONTEXT_NOT_EXISTS] SparkContext or SparkSession should be created first.')"
    with pytest.raises(RequestError, match="SESSION_OR_CONTEXT") as caught:
        load_pipelines(written(tmp_path, text))
    assert "before Spark is started" in caught.value.hint


@pytest.mark.spark
def test_a_spark_error_is_reported_in_one_line_and_nowhere_else(
    spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql import functions

    silence_spark()
    with pytest.raises(RequestError) as caught, shown_at_the_users_line("it cannot be built"):
        spark.range(5).select(functions.col("nothere"))
    what, *lines, error = str(caught.value).splitlines()
    assert what == "it cannot be built"
    assert "test_user_code.py" in lines[0]
    assert error.startswith("AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert error.endswith("Did you mean one of the following? [`id`]. SQLSTATE: 42703")
    assert capsys.readouterr().err == ""
