"""The class archive is created once, used if it is valid, and never prevents Spark from starting."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.run.class_archive import SWITCH, ClassArchive, archive_for, find_archive
from penstock.spark.run.java import Java
from tests.support.java import need_spark

TRUNCATED_BYTES = 100_000

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the archive that all tests use."""


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(archive: ClassArchive, data: bytes = b"classes") -> ClassArchive:
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.path.with_suffix(".partial")
    partial.write_bytes(data)
    archive.install(partial)
    return archive


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core.jar").write_bytes(b"1")
    return tmp_path / "jars"


def test_another_java_or_other_jars_get_a_new_archive_that_replaces_the_old_one(jars: Path) -> None:
    old = put(archive_for(Java(None, 17, "17.0.14"), jars))
    assert archive_for(Java(None, 17, "17.0.14"), jars) == old
    new_java = archive_for(Java(None, 17, "17.0.15"), jars)
    (jars / "spark-core.jar").write_bytes(b"22")
    new_jars = archive_for(Java(None, 17, "17.0.15"), jars)
    assert len({old, new_java, new_jars}) == 3
    assert new_jars.is_missing
    put(new_jars)
    assert new_jars.is_usable
    assert not old.path.exists(), "nobody uses it any more"


def test_only_a_file_that_nobody_else_can_write_is_used(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes-1-2.jsa")
    assert archive.options() == ""
    put(archive)
    assert shlex.split(archive.options())[-1] == f"-XX:SharedArchiveFile={archive.path}"
    archive.path.chmod(0o620)
    assert archive.options() == ""


def test_a_discarded_archive_is_not_created_again(tmp_path: Path) -> None:
    archive = put(ClassArchive(tmp_path / "classes-1-2.jsa"))
    archive.discard()
    assert not archive.is_usable
    assert not archive.is_missing


def test_the_class_archive_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert find_archive() is None


# With a real JVM.


@pytest.fixture
def java() -> str:
    home = need_spark().home
    return "java" if home is None else str(home / "bin" / "java")


def run_java(java: str, *options: str) -> str:
    return subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.process
@pytest.mark.parametrize("damage", ["none", "truncated", "empty", "other bytes"])
def test_a_jvm_starts_with_a_damaged_archive(java: str, tmp_path: Path, damage: str) -> None:
    archive = ClassArchive(tmp_path / "a folder" / "classes-1-2.jsa")
    partial = tmp_path / "partial"
    run_java(java, *shlex.split(archive.creating_options(partial)))
    archive.path.parent.mkdir()
    archive.install(partial)
    match damage:
        case "truncated":
            os.truncate(archive.path, TRUNCATED_BYTES)
        case "empty":
            os.truncate(archive.path, 0)
        case "other bytes":
            archive.path.write_bytes(bytes(archive.path.stat().st_size))
    options = shlex.split(archive.options())
    assert run_java(java, *options) == "", "nothing on stdout, which belongs to the user's pipelines"
    used = run_java(java, *options, "-Xlog:class+load:stdout")
    assert ("shared objects file (top)" in used) == (damage == "none")


@pytest.mark.spark
def test_spark_starts_without_an_archive_that_its_jvm_rejects(
    java: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a Java that fails if it gets one."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    program = f'#!/bin/sh\ncase "$*" in *SharedArchive*) exit 1;; esac\nexec {shutil.which(java)} "$@"\n'
    (home / "bin" / "java").write_text(program)
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    archive = find_archive()
    assert archive is not None
    put(archive)
    assert not jvm_maps(archive.path, tmp_path)
    assert not archive.path.exists()
    assert not archive.is_missing, "it would fail again"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_maps_the_archive_that_was_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    subprocess.run([sys.executable, "-m", "penstock.cli.class_archive"], check=True)
    archive = find_archive()
    assert archive is not None
    assert jvm_maps(archive.path, tmp_path)


def jvm_maps(archive: Path, folder: Path) -> bool:
    """Whether the JVM of a driver maps the file; in a separate process, since this one may have a session already."""
    program = f"""
from pathlib import Path
from penstock.spark.run.driver import spark_driver
with spark_driver("test", "local[1]", {{}}, Path({str(folder / "spark.log")!r})) as driver:
    pid = driver.session.sparkContext._gateway.proc.pid
    print({str(archive)!r} in Path(f"/proc/{{pid}}/maps").read_text())
"""
    printed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return printed.strip() == "True"
