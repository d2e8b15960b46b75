"""The other versions of Python that are on this machine: from a clone to the first result, with each."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.first_result import Newcomer

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

VERSIONS = [f"3.{minor}" for minor in (11, 12, 13, 14) if minor != sys.version_info.minor]
"""Those of `requires-python`, and of the classifiers, except the one that runs the other tests."""
_PYENV = Path.home() / ".pyenv" / "versions"


def interpreter(version: str) -> str | None:
    """On PATH, or among those of pyenv."""
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(_PYENV.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if re.match(rf"Python {re.escape(version)}\.", done.stdout):
            return candidate
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_newcomer_gets_a_result_with_each_python(version: str, tmp_path: Path) -> None:
    """pip gets the packages from where it is configured to."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    Newcomer(tmp_path, python).go()
