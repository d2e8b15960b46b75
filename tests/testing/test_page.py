"""The tests on docs/testing.md pass, in the session that all tests share: a reader's would start one."""

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

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page's files, saved where the reader is; the names of the modules among them."""
    files = [step for step in steps(PAGE) if isinstance(step, File)]
    names = [Path(file.name).stem for file in files if file.name.endswith(".py")]
    for file in files:
        (tmp_path / file.name).write_text(file.text)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # so that the test puts back what is there now
        del sys.modules[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return names


def test_the_tests_on_the_page_pass(modules: list[str], spark: SparkSession) -> None:
    found = [
        function
        for name in modules
        if name.startswith("test_")
        for function in vars(importlib.import_module(name)).values()
        if inspect.isfunction(function) and function.__name__.startswith("test_")
    ]
    assert len(found) == 3
    for function in found:
        function(**({"penstock_spark": spark} if inspect.signature(function).parameters else {}))


def test_the_other_examples_run(modules: list[str], spark: SparkSession) -> None:
    assert modules
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    others = [block for block in blocks if not block.startswith("# ")]
    assert others
    for block in others:
        exec(block, {"__name__": "example"})
