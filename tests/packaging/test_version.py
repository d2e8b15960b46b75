"""The version is the same everywhere, and is the newest of the changelog."""

import re
import sys
import tomllib
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from penstock import __version__
from tests.packaging.environments import ROOT


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_package_has_the_version_of_its_project() -> None:
    assert project()["version"] == __version__


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[0] == __version__


@pytest.mark.parametrize("page", ["README.md", "docs/operating.md"])
def test_pages_show_the_output_of_this_version(page: str) -> None:
    shown = re.findall(r"^penstock (\d\S*) on ", (ROOT / page).read_text(), re.MULTILINE)
    assert set(shown) == {__version__}


def test_the_pythons_of_the_classifiers_are_those_that_it_requires() -> None:
    """And the one that runs the tests is among them: `PYTHON=python3.13 script/test` chooses another."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
    named = [match[1] for one in project()["classifiers"] if (match := pattern.match(one))]
    required = SpecifierSet(project()["requires-python"])
    assert named
    assert all(required.contains(version) for version in named)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in named
