"""`penstock` on PyPI is somebody else's package: nothing sends users there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT

NAMES = (
    re.compile(
        r"(?:pip|pipx|uv|uv pip|uv tool|poetry|conda) +(?:install|add) (?:[^\n`&;|#]*[ '\"])?penstock(?![-\w/.])"
    ),
    re.compile(r"\buvx\s+(?:--from\s+)?['\"]?penstock(?![-\w])"),
    re.compile(r"['\"`]penstock(?:\[[a-z,]+\]|\s*[<>=~!]=)"),
    re.compile(r"pypi\.org/(?:project|p|simple)/penstock(?!-)"),
)
"""How people and tools are told to install a package of that name."""

TEXTS = {".md", ".py", ".txt", ".toml", ".yaml", ".yml", ".sh", ""}


def texts() -> Iterator[Path]:
    yield from (
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt")
    )
    for folder in ("docs", "src", "examples", "demo", "script"):
        yield from (one for one in (ROOT / folder).rglob("*") if one.is_file() and one.suffix in TEXTS)


def mentions(text: str) -> list[str]:
    return [match[0] for name in NAMES for match in name.finditer(text)]


def test_no_text_asks_users_to_install_penstock() -> None:
    found = {str(path.relative_to(ROOT)): said for path in texts() if (said := mentions(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install penstock",
        "pip install 'penstock[spark]'",
        'pip install -U "penstock"',
        "pip install penstock==1.0",
        "uvx penstock init",
        "uvx --from penstock penstock init",
        "uv tool install penstock",
        'dependencies = ["penstock>=0.1"]',
        "https://pypi.org/project/penstock/",
    ],
)
def test_text_that_would_is_recognised(text: str) -> None:
    assert mentions(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'penstock-streams[spark]'",
        "pip install '.[spark]' && penstock init house",
        "uvx --from penstock-streams penstock init",
        'dependencies = ["penstock-streams>=0.1"]',
        "https://pypi.org/project/penstock-streams/",
        "pip install my-connector && penstock connectors",
    ],
)
def test_correct_text_passes(text: str) -> None:
    assert not mentions(text)
