"""The tests on the pages pass, in the session that all tests share: a reader's would start one."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.page import File, steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "testing.md"


def save(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page's files, saved where the reader is. The names of the modules among them."""
    files = [step for step in steps(page) if isinstance(step, File)]
    names = [Path(file.name).stem for file in files if file.name.endswith(".py")]
    for file in files:
        (tmp_path / file.name).write_text(file.text)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # so that the test puts back what is there now
        del sys.modules[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return names


@pytest.mark.parametrize(("page", "count"), [("testing.md", 3), ("tutorial.md", 2)])
def test_the_tests_on_the_page_pass(
    page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    modules = save(DOCS / page, tmp_path, monkeypatch)
    found = [
        function
        for name in modules
        if name.startswith("test_")
        for function in vars(importlib.import_module(name)).values()
        if inspect.isfunction(function) and function.__name__.startswith("test_")
    ]
    assert len(found) == count
    for function in found:
        function(**({"penstock_spark": spark} if inspect.signature(function).parameters else {}))


def test_the_other_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    save(PAGE, tmp_path, monkeypatch)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    others = [block for block in blocks if not block.startswith("# ")]
    assert others
    for block in others:
        exec(block, {"__name__": "example"})
