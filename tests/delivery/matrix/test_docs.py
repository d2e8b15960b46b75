"""The table in the docs is the one that is tested."""

from itertools import product
from pathlib import Path

from tests.delivery.matrix.cells import TABLE, Answer, Cell, Killed, Lost, as_markdown

DOCS = Path(__file__).parents[3] / "docs" / "internals" / "delivery.md"


def test_the_table_has_every_cell() -> None:
    assert set(TABLE) == {Cell(*each) for each in product(Answer, Lost, Killed)}


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    assert as_markdown() in DOCS.read_text()


def test_every_test_that_the_docs_name_exists() -> None:
    root = DOCS.parents[2]
    named = [part for part in DOCS.read_text().split("`") if part.startswith("tests/")]
    assert named
    for name in named:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (root / file).read_text() if test else (root / file).exists(), name
