"""The tests that docs/streams.md names exist."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_docs_name_exists() -> None:
    named = [part for part in (ROOT / "docs" / "streams.md").read_text().split("`") if part.startswith("tests/")]
    assert named
    for name in named:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).exists(), name
