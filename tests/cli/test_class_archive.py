"""`penstock run` creates a missing class archive in the background, once its pipelines run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from penstock.cli import class_archive
from penstock.cli.class_archive import BackgroundCreation, create
from penstock.spark.run.class_archive import SWITCH, ClassArchive
from penstock.spark.run.runner import RunningPipeline
from tests.support.java import need_java


@dataclass
class Progressing:
    """As much of a running pipeline as matters here."""

    progress: object = None


def looked(creation: BackgroundCreation, now: float, *progress: object) -> bool:
    """Whether the process is started after this look."""
    creation.look([cast("RunningPipeline", Progressing(one)) for one in progress], now)
    return creation.process is not None


@pytest.fixture(autouse=True)
def _no_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need_java()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(SWITCH, "auto")


@pytest.mark.process
def test_it_is_created_a_minute_after_the_first_epochs_of_all_pipelines_and_ends_with_the_run() -> None:
    with BackgroundCreation() as creation:
        assert not looked(creation, 0.0, "an epoch", None)
        assert not looked(creation, 100.0, "an epoch", "an epoch")
        assert not looked(creation, 159.0, "an epoch", "an epoch")
        assert looked(creation, 160.0, "an epoch", "an epoch")
        process = creation.process
        looked(creation, 300.0, "an epoch", "an epoch")
        assert creation.process is process, "there is no second one"
    assert process is not None
    assert process.returncode is not None


@pytest.mark.parametrize("value", ["use", "off"])
def test_it_is_not_created_if_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SWITCH, value)
    with BackgroundCreation() as creation:
        assert not looked(creation, 0.0, "an epoch")
        assert not looked(creation, 1000.0, "an epoch")


def test_an_archive_that_could_not_be_written_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = ClassArchive(tmp_path / "classes-1-2.jsa")
    archive.path.with_suffix(".partial").write_bytes(b"half of it, by a process that was killed")
    monkeypatch.setattr(class_archive, "_run_pipelines", lambda *_: True)  # its JVM writes nothing
    assert not create(archive)
    assert not archive.is_missing, "it would fail again"


def test_what_a_jvm_wrote_before_it_was_killed_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes-1-2.jsa")

    def run_a_jvm_that_is_killed(*_: object) -> bool:
        archive.path.with_suffix(".partial").write_bytes(b"half of it")
        return False

    monkeypatch.setattr(class_archive, "_run_pipelines", run_a_jvm_that_is_killed)
    assert not create(archive)
    assert archive.is_missing, "the machine may be less busy next time"
