"""Java is found where it is installed, and the packaged one is made usable otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run import java


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def pretended_java(home: Path, version: str) -> Path:
    program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    return home


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")  # remembered, so that what `use_java` sets is undone
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = pretended_java(tmp_path / "home", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(pretended_java(tmp_path / "other", "17.0.1") / "bin"))
    assert java.use_java() == java.Java(home, 21)
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_on_the_path_is_used_if_java_home_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(pretended_java(tmp_path / "old", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(pretended_java(tmp_path / "new", "17.0.15") / "bin"))
    assert java.use_java() == java.Java(None, 17)
    assert "JAVA_HOME" not in os.environ, "Spark would take the old one"


def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"Spark needs Java 17 or newer, and there is none$") as caught:
        java.find_java()
    assert "penstock-streams[java]" in caught.value.hint
    old = pretended_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(RequestError, match="java is 11"):
        java.find_java()


def test_a_java_that_fails_to_run_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "broken" / "bin" / "java", "exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    with pytest.raises(RequestError, match="not usable"):
        java.find_java()


def test_the_packaged_java_gets_a_wrapper_without_the_missing_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = program(tmp_path / "it's packaged" / "java", f'exec {sys.executable} -c "{SAY}" "$@"')
    monkeypatch.setattr(java, "_packaged", lambda: real)
    found = java.use_java()
    assert found.version == 21
    assert found.home is not None
    assert found.home.is_relative_to(tmp_path / "cache" / "penstock")
    wrapper = found.home / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "it's"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["-Xmx1g", "a b", "", "it's"])


SAY = "import sys; print(sys.argv[1:]); print('openjdk version', chr(34) + '21.0.8' + chr(34), file=sys.stderr)"


def test_the_wrapper_is_created_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: pretended_java(tmp_path / "packaged", "21.0.8") / "bin" / "java")
    home = java.find_java().home
    assert home is not None
    made = (home / "bin" / "java").stat()
    assert java.find_java().home == home
    assert (home / "bin" / "java").stat().st_mtime_ns == made.st_mtime_ns


def test_a_cache_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(java, "_packaged", lambda: pretended_java(tmp_path / "packaged", "21.0.8") / "bin" / "java")
    with pytest.raises(RequestError, match="cannot be written"):
        java.find_java()
