"""The pages that are generated from the code are current."""

from script.references import DOCS, pages


def test_generated_references_are_current() -> None:
    """Of the routes, and of the metrics that a worker has now. If this fails: python script/references.py."""
    current = pages()
    assert {name: (DOCS / name).read_text(encoding="utf-8") for name in current} == current
