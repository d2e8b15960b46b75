"""A newcomer follows the pages, word for word and from top to bottom, and sees what they print."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import __version__
from tests.docs.session import Session
from tests.packaging.environments import ROOT, Environment
from tests.support.java import need_spark

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("pages"),  # their workers listen on the default ports
]


@pytest.fixture(autouse=True, scope="module")
def _spark() -> None:
    need_spark()


def test_the_readme_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone, and an environment where Penstock is not installed yet: the page says how."""
    clone, environment = tmp_path / "penstock", tmp_path / "environment"
    _clone(clone)
    made = _make_environment(environment, "spark")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # what Penstock needs is there: this test needs no network
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads it the other way round
    with Session(clone, environment / "bin") as session:
        assert session.follow(clone / "README.md") > 0
    made.pip("check")
    assert made.run("penstock", "--version", cwd=tmp_path).stdout.strip() == f"penstock {__version__}"
    source = "import pyspark_penstock; print(pyspark_penstock.DefaultSource.name())"
    assert made.run("python", "-c", source, cwd=tmp_path).stdout.strip() == "penstock"


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """With what it says it needs, and no more."""
    page = ROOT / "docs" / "tutorial.md"
    (extras,) = re.findall(r"`pip install '\.\[(.+)\]'`", page.read_text())
    clone, folder = tmp_path / "penstock", tmp_path / "empty"
    _clone(clone)
    folder.mkdir()
    made = _make_environment(tmp_path / "environment", extras)
    made.pip("install", "--quiet", "--no-build-isolation", ".", cwd=clone)
    with Session(folder, made.folder / "bin") as session:
        assert session.follow(page) > 0


def _clone(folder: Path) -> None:
    """The files of the repository as they are now, whether they are committed or not."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))  # of script/demo, which would install the same packages again


CURL = """\
import sys, urllib.request
*_, url = sys.argv
with urllib.request.urlopen(urllib.request.Request(url, data=sys.stdin.buffer.read())) as reply:
    sys.stdout.buffer.write(reply.read())
"""
"""What the page needs of curl, where a machine has none."""


def _make_environment(folder: Path, extras: str) -> Environment:
    """One that has what Penstock with these extras needs, and a `pip`, but not Penstock itself."""
    made = Environment(folder, f"penstock-streams[{extras}]", "hatchling", "pip")
    pip = made.folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {made.folder}/bin/python -m pip --disable-pip-version-check "$@"\n')
    pip.chmod(0o755)
    if shutil.which("curl") is None:
        (made.folder / "bin" / "curl").write_text(f"#!{made.folder}/bin/python\n{CURL}")
        (made.folder / "bin" / "curl").chmod(0o755)
    return made
