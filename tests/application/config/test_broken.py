"""Broken configurations: every mistake is reported, all at once, with its line and column."""

from itertools import pairwise
from pathlib import Path

import pytest

from penstock.application.config import ConfigErrors, load
from tests.application.config.broken import ENVIRON, FILES, Case, cases
from tests.application.config.small_types import SmallTypes


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_it_reports_what_is_wrong_and_where(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("app.yaml").write_text(case.text)
    with pytest.raises(ConfigErrors) as caught:
        load(Path("app.yaml"), SmallTypes(), ENVIRON)
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == case.said
    assert caught.value.hint == _count(len(case.said.splitlines()))
    for value in (*ENVIRON.values(), FILES["weak"].strip()):
        assert value not in f"{caught.value} {caught.value.hint} {caught.value!r}"


def _count(mistakes: int) -> str:
    return f"{mistakes} {'mistake' if mistakes == 1 else 'mistakes'}: nothing was started."


def test_there_are_many_of_them() -> None:
    titles = [case.title for case in cases()]
    assert len(set(titles)) == len(titles) >= 60


def test_mistakes_know_their_place(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text("connector:\n  - id: a\n    typ: x\n")
    with pytest.raises(ConfigErrors) as caught:
        load(file, SmallTypes(), {})
    found = [(mistake.place.line, mistake.place.column, mistake.text) for mistake in caught.value.mistakes]
    assert found == [
        (2, 5, 'the key "type" is missing in connector "a"'),
        (3, 5, 'unknown key "typ" in connector "a"'),
    ]


def test_a_missing_file_and_one_that_is_not_text_are_reported_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"app\.yaml:1:1: the file cannot be read: No such file"):
        load(tmp_path / "app.yaml", SmallTypes(), {})
    (tmp_path / "app.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigErrors, match=r"app\.yaml:1:1: the file is not UTF-8 text"):
        load(tmp_path / "app.yaml", SmallTypes(), {})


def laughs() -> str:
    """A list of lists of lists, each of ten aliases: 10^7 values."""
    names = "abcdefg"
    rest = (f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n" for a, b in pairwise(names))
    return "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n" + "".join(rest)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("connector: " + "[" * 2000 + "]" * 2000, "the file is nested too deeply"),
        ("connector: " + "[" * 60 + "]" * 60, "an alias contains itself, or expands to too much"),
        (laughs(), "an alias contains itself, or expands to too much"),
        ("#" * (1 << 20) + "\nconnector: []\n", "the file is larger than 1MiB"),
    ],
    ids=["too deep for the parser", "too deep", "aliases of aliases", "too large"],
)
def test_a_file_that_is_too_large_is_refused_unread(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(text)
    with pytest.raises(ConfigErrors, match=said):
        load(file, SmallTypes(), {})
