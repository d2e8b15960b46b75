"""Log lines, alike in every process."""

import logging
import re
import subprocess
import sys

from penstock.core.logs import log_line

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR|CRITICAL) [\w.]+: "


def logged(program: str) -> list[str]:
    """What a process with logging set up writes to stderr."""
    program = f"import logging\nfrom penstock.core.logs import set_up_logging\nset_up_logging()\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stderr.split("\n")


def test_a_warning_has_a_time_a_level_and_who_logs_it() -> None:
    line, _ = logged("logging.getLogger('penstock.store').info('no'); logging.getLogger('penstock.store').warning('x')")
    assert re.fullmatch(LINE + "x", line)
    assert "WARNING penstock.store: x" in line


def test_a_line_has_no_secret_whoever_logs_it() -> None:
    """Nor a traceback, nor a line of a secret that has several."""
    program = """
from penstock.connectors.secrets import Mask
mask = Mask()
mask.add("hunter2", "${PASSWORD}")
mask.add("first-of-two\\nsecond-of-two", "${file:KEY}")
logging.getLogger("library").warning("no access for %s: first-of-two", "hunter2")
try:
    raise ValueError("hunter2 and second-of-two")
except ValueError:
    logging.getLogger("library").exception("it failed")
"""
    text = "\n".join(logged(program))
    assert "no access for ${PASSWORD}: ${file:KEY}" in text
    assert "ValueError: ${PASSWORD} and ${file:KEY}" in text
    assert "hunter2" not in text


def test_users_who_set_up_logging_have_their_way() -> None:
    program = "logging.basicConfig(format='mine: %(message)s'); logging.getLogger('penstock').error('x')"
    assert logged(program) == ["mine: x", ""]


def test_a_line_of_a_command_looks_like_one_of_a_logger() -> None:
    assert re.fullmatch(LINE + "100% of it", log_line("100% of it", "penstock.run"))
    assert " ERROR penstock.run: " in log_line("no", "penstock.run", logging.ERROR)
