"""The public API has the signatures of `tests/public_api.txt`, and each of its names says what it does."""

from difflib import unified_diff
from pathlib import Path

import griffe
import pytest

from script.public_api import lines, public_names

pytestmark = pytest.mark.slow  # reads the whole source

KEPT = Path(__file__).parent / "public_api.txt"


def test_signatures_change_only_together_with_the_file() -> None:
    """A change that breaks users' programs shows in review as a change of this file."""
    changed = unified_diff(KEPT.read_text().splitlines(), [*lines()], "tests/public_api.txt", "the source", lineterm="")
    assert "\n".join(changed) == "", "if it is meant: python script/public_api.py > tests/public_api.txt"


def test_every_public_name_is_documented() -> None:
    undocumented = [
        f"{one.module}.{one.name}"
        for one in public_names()
        if isinstance(one.defined, griffe.Function | griffe.Class) and one.defined.docstring is None
    ]
    assert undocumented == []
