"""The cluster's page in a real browser: hosts, the shards that they serve, and a move from one to the other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from tests.support.tokens import TOKEN
from tests.support.waiting import SECONDS_MAX
from tests.worker.hosts import hosts

if TYPE_CHECKING:
    from playwright.sync_api import Page

playwright = pytest.importorskip("playwright.sync_api", reason="the browser's driver is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]


def test_a_shard_is_seen_at_its_host_and_after_a_move_at_the_other(tmp_path: Path) -> None:
    with hosts(tmp_path, 2, 0) as made:
        first, second = (made.names[one] for one in made.all)
        address = f"127.0.0.1:{made.all[0].http_port}"
        command = [sys.executable, "-m", "penstock", "dashboard", "--worker", address, "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            try:
                assert process.stderr is not None
                line = next(line for line in process.stderr if "dashboard: " in line)
                root = line.partition("dashboard: ")[2].partition("/ ")[0]
                _look(root, first, second, address)
            finally:
                process.terminate()


def _look(root: str, first: str, second: str, address: str) -> None:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.set_default_timeout(SECONDS_MAX * 1000)
        page.goto(f"{root}/login")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{root}/")
        page.goto(f"{root}/cluster")
        row(page, first, "host", "0, 1")
        row(page, second, "host", "")
        row(page, "0", first, "served")
        row(page, "1", first, "served")
        done = CliRunner().invoke(app, ["cluster", "move", "0", second, "--worker", address])
        assert done.exit_code == 0, done.output
        row(page, first, "host", "1")
        row(page, second, "host", "0")
        row(page, "0", second, "served")
        row(page, "1", first, "served")
        browser.close()


def row(page: "Page", *texts: str) -> None:
    """Wait for one that begins with the first text and has the others."""
    found = page.locator(
        "tbody tr", has=page.locator("td:first-child", has_text=re.compile(f"^{re.escape(texts[0])}$"))
    )
    for text in texts[1:]:
        found = found.filter(has=page.get_by_role("cell", name=text, exact=True))
    found.first.wait_for()
