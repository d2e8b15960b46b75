"""Python on the pages compiles, and imports names that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OWN_FILE = re.compile(r"^```python\n# (\w+)\.py$", re.MULTILINE)
"""A file that the reader saves: other blocks of the page may import it."""


def snippets() -> Iterator[tuple[str, str, set[str]]]:
    """Each with its name, and the modules that its page defines."""
    for page in PAGES:
        content = page.read_text()
        for number, match in enumerate(_PYTHON.finditer(content), start=1):
            yield f"{page.relative_to(ROOT)} {number}", match[1], {*_OWN_FILE.findall(content)}


@pytest.mark.parametrize(("text", "own"), [pytest.param(text, own, id=name) for name, text, own in snippets()])
def test_it_compiles_and_its_imports_exist(text: str, own: set[str]) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in own:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), {})


def test_there_are_some() -> None:
    assert len(list(snippets())) > 20
