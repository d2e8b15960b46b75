"""Links between pages lead somewhere, the index has every page, and tests that pages name exist."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w./-]+)(?:::(\w+))?`")


def pages() -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_to_a_page_and_its_section(page: Path) -> None:
    assert [link for link in _links(page) if not _leads_somewhere(page, link)] == []


@pytest.mark.parametrize("page", pages())
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    assert [f"{path}::{test}" for path, test in _TEST.findall(page.read_text()) if not _is_test(path, test)] == []


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    generated = set((ROOT / "docs" / "connectors").glob("*.md")) - {ROOT / "docs" / "connectors" / "README.md"}
    assert set((ROOT / "docs").rglob("*.md")) - generated - {index} - listed == set()


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title` (here)\n[a](#a-title-here) [b](#nowhere) [c](gone.md) [d](page.md#a-title-here)\n")
    assert [link for link in _links(page) if not _leads_somewhere(page, link)] == ["#nowhere", "gone.md"]


def test_a_test_that_is_gone_is_found() -> None:
    here = str(Path(__file__).relative_to(ROOT))
    assert _is_test(here, "test_a_test_that_is_gone_is_found")
    assert not _is_test(here, "test_that_never_was")
    assert not _is_test("tests/gone.py", "")


def _links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if not link.startswith(("http://", "https://")):
            yield link


def _leads_somewhere(page: Path, link: str) -> bool:
    file, _, section = link.partition("#")
    target = page.parent / file if file else page
    if not target.exists():
        return False
    return not section or section in _sections(target)


def _sections(page: Path) -> set[str]:
    """As GitHub names them: lower case, hyphens for blanks, no punctuation."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_test(path: str, name: str) -> bool:
    file = ROOT / path
    return file.exists() and (
        not name or re.search(rf"^ *(async def|def|class) {name}\(", file.read_text(), re.MULTILINE) is not None
    )


def test_the_files_of_the_walks_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    walks = text[text.index("## Three walks") : text.index("## Pages that are run")]
    files = re.findall(r"`([a-z_/]+\.py)`", walks)
    assert len(files) > 40
    assert [file for file in files if not (ROOT / "src/penstock" / file).is_file()] == []


def test_the_folders_are_described_and_are_in_the_order_that_is_enforced() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    with (ROOT / "pyproject.toml").open("rb") as file:
        [layers, *_] = [
            one for one in tomllib.load(file)["tool"]["importlinter"]["contracts"] if one["type"] == "layers"
        ]
    enforced = [set(re.findall(r"\w+", layer)) for layer in reversed(layers["layers"])]
    [chain] = re.findall(r"^`core` ←.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert [set(re.findall(r"\w+", layer)) for layer in chain.split("←")] == enforced
    described = re.findall(r"^- (`\w+`(?:, `\w+`)*):", text, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(described))) == set().union(*enforced)
