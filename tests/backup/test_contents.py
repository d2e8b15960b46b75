"""Which files are part of a backup."""

from pathlib import Path, PurePosixPath

import pytest

from penstock.backup.contents import (
    chapters_before,
    checkpoint_files,
    checkpoints_in,
    has_moved_on,
    missing_checkpoints,
)
from penstock.spark.run.checkpoint_files import belongs
from penstock.store.record import CHAPTER_HEADER_BYTES


def test_closed_chapters_are_copied_whole_and_the_last_one_up_to_the_position() -> None:
    closed, last = chapters_before([0, 1000], 1500)
    assert (closed.path, closed.length) == ("journal/00000000000000000000.journal", None)
    assert (last.path, last.length) == ("journal/00000000000000001000.journal", CHAPTER_HEADER_BYTES + 500)


def test_a_chapter_that_starts_at_the_position_is_not_needed() -> None:
    assert [chapter.base for chapter in chapters_before([0, 1000], 1000)] == [0]


@pytest.mark.parametrize(
    ("path", "is_part"),
    [
        ("offsets/7", True),
        ("offsets/8", False),
        ("commits/7", True),
        ("commits/8", False),
        ("state/0/3/8.changelog", True),
        ("state/0/3/9.changelog", False),
        ("state/0/3/9.zip", False),
        ("state/0/3/9_5f0e.zip", False),
        ("state/0/3/SSTs/000009-5f0e.sst", True),
        ("state/0/_metadata/metadata", True),
        ("metadata", True),
        ("penstock.json", True),
        ("offsets/.7.crc", False),
        ("state/0/3/.9.changelog.5f0e.tmp", False),
        ("state/0/3/8.zip.tmp", False),
    ],
)
def test_a_checkpoint_is_copied_as_it_was_after_the_last_merged_epoch(path: str, is_part: bool) -> None:
    assert belongs(PurePosixPath(path), 7) is is_part


def test_the_commit_log_is_copied_before_the_state(tmp_path: Path) -> None:
    for name in ("state/0/0/1.changelog", "offsets/0", "commits/0", "metadata"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    files = checkpoint_files(tmp_path, 0)
    assert str(next(files)) == "commits/0"
    (tmp_path / "state/0/1").mkdir()
    (tmp_path / "state/0/1/1.changelog").write_text("written while the logs were copied")
    assert [str(path) for path in files] == ["metadata", "offsets/0", "state/0/0/1.changelog", "state/0/1/1.changelog"]


def test_state_may_be_gone_when_the_log_before_it_is_gone() -> None:
    assert not has_moved_on([6, 7, 8, 9], 7)
    assert not has_moved_on([0, 1], 0)
    assert has_moved_on([7, 8, 9], 7)
    assert has_moved_on([], 0)


def test_a_pipeline_that_has_committed_needs_its_checkpoint(tmp_path: Path) -> None:
    for name in ("here/offsets", "moved~reset/offsets", "something/else"):
        (tmp_path / name).mkdir(parents=True)
    present = checkpoints_in(tmp_path)
    assert present == ["here"]
    assert missing_checkpoints({"here": 3, "new": -1, "elsewhere": 0}, present) == ["elsewhere"]
