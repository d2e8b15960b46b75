"""Python on the pages compiles, and imports names that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, match in enumerate(_PYTHON.finditer(page.read_text()), start=1):
            yield f"{page.relative_to(ROOT)} {number}", match[1]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in snippets()])
def test_it_compiles_and_its_imports_exist(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), {})


def test_there_are_some() -> None:
    assert len(list(snippets())) > 20
