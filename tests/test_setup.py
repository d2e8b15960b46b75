"""script/setup: which Java is good enough for Spark. It asks the same as `penstock.spark.run.java` does."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parent.parent / "script" / "setup"


def is_usable(java_home: Path | None, *on_path: Path) -> bool:
    """What the script's own function says."""
    found = re.search(r"^java_is_usable\(\) \{\n.*?^\}", SETUP.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    environment = {"PATH": os.pathsep.join(map(str, (*on_path, "/nowhere")))}
    environment |= {} if java_home is None else {"JAVA_HOME": str(java_home)}
    sed = 'sed() { /usr/bin/env -i /bin/sed "$@"; }'  # PATH has nothing but what the test puts there
    asked = "if java_is_usable; then exit 0; fi; exit 1"
    program = f"set -euo pipefail; {sed}\n{found[0]}\n{asked}"
    return subprocess.run(["/bin/bash", "-c", program], env=environment, check=False).returncode == 0


@pytest.fixture
def javas(tmp_path: Path) -> Path:
    for name, version in {"old": "1.8.0_402", "new": "17.0.15", "newest": "25"}.items():
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        java.chmod(0o755)
    return tmp_path


def test_a_java_of_17_or_newer_is_taken_from_either_place(javas: Path) -> None:
    assert is_usable(javas / "new")
    assert is_usable(None, javas / "newest" / "bin")
    assert is_usable(javas / "old", javas / "new" / "bin")
    assert is_usable(javas / "nowhere", javas / "new" / "bin")


def test_an_older_one_or_none_is_not(javas: Path) -> None:
    assert not is_usable(None)
    assert not is_usable(javas / "old")
    assert not is_usable(javas / "nowhere", javas / "old" / "bin")
