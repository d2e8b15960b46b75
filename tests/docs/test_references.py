"""The pages that are generated from the code are current."""

from script.references import DOCS, pages


def test_generated_references_are_current() -> None:
    """If this fails: python script/references.py."""
    assert {name: (DOCS / name).read_text(encoding="utf-8") for name in pages()} == pages()
