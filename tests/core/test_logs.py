"""Log lines, alike in every process."""

import json
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


def test_secrets_are_hidden_before_a_text_is_cut_or_escaped_and_the_longest_first() -> None:
    long, odd = "hunter2-and-very-much-more", 'pa"ss\\word\t1'
    program = f"""
from penstock.connectors.secrets import Mask
from penstock.core.logs import quoted
masks = [Mask() for _ in range(4)]
values = {{"A": "hunter2", "B": {long!r}, "C": {odd!r}, "URL": "postgres://penstock:s3cret-s3cret@localhost/db"}}
for mask, (name, value) in zip(masks, values.items()):
    mask.add(value, "${{" + name + "}}")
log = logging.getLogger("penstock.delivery")
log.warning("begin %s %s", values["B"], quoted(values["C"]))
log.warning("cut %s", quoted("x" * 295 + values["B"]))
log.warning("url %s on localhost", values["URL"])
"""
    begin, cut, url, _ = logged(program)
    assert begin.endswith('WARNING penstock.delivery: begin ${B} "${C}"')
    assert "hunt" not in cut
    assert url.endswith("WARNING penstock.delivery: url ${URL} on localhost")


def test_a_line_that_is_logged_while_another_one_is_formatted_waits_for_nothing() -> None:
    """A garbage collection may run anywhere, and what it collects may log."""
    program = """
import gc
from penstock.connectors.secrets import Mask
masks = [Mask() for _ in range(3)]
for number, mask in enumerate(masks):
    mask.add(f"secret-{number}", "${S}")
log = logging.getLogger("penstock.a")
class Odd:
    def __del__(self):
        logging.getLogger("penstock.b").warning("collected")
for number in range(300):
    gc.set_threshold(3 + number % 37, 10, 10)
    odd = Odd()
    odd.itself = odd
    del odd
    log.warning("line secret-1")
print("done")
"""
    assert "secret-1" not in "\n".join(logged(program))


def test_lines_may_be_json_for_programs() -> None:
    program = """
from penstock.core.logs import LogFormat, LogLevel, set_up_logging
set_up_logging(level=LogLevel.INFO, form=LogFormat.JSON)
log = logging.getLogger("penstock.store")
log.debug("not this")
log.info("it has %d\\nlines", 2)
try:
    raise ValueError("x")
except ValueError:
    log.exception("it failed")
"""
    first, second, _ = logged(program)
    shown = json.loads(first)
    assert {**shown, "time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "penstock.store",
        "message": "it has 2\\nlines",
    }
    assert "ValueError: x" in json.loads(second)["exception"]


def test_a_line_that_does_not_fit_into_the_log_file_goes_to_stderr_without_a_traceback() -> None:
    """/dev/full is a disk that is."""
    program = """
from pathlib import Path
set_up_logging(Path("/dev/full"))
logging.getLogger("penstock.store").warning("no room")
import os
os._exit(0)
"""
    line, _ = logged(program)
    assert re.fullmatch(LINE + "no room", line)


def test_logging_set_up_by_users_is_left_alone() -> None:
    program = "logging.basicConfig(format='mine: %(message)s'); logging.getLogger('penstock').error('x')"
    assert logged(program) == ["mine: x", ""]


def test_lines_of_commands_look_like_those_of_loggers() -> None:
    assert re.fullmatch(LINE + "100% of it", log_line("100% of it", "penstock.run"))
    assert " ERROR penstock.run: " in log_line("no", "penstock.run", logging.ERROR)
