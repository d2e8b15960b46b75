"""The site is built strictly: a link or a name that leads nowhere fails. A page loads nothing from the Internet."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.waiting import SECONDS_MAX

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    missing = [page for page in pages if not (site / page.parent / _html(page)).exists()]
    assert missing == []


def _html(page: Path) -> str:
    return "index.html" if page.stem == "README" else f"{page.stem}.html"


def test_a_page_loads_nothing_from_the_internet(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = _Loaded()
        found.feed(page.read_text())
        assert [address for address in found.addresses if re.match(r"(https?:)?//", address)] == [], page


class _Loaded(HTMLParser):
    """The addresses of what a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = {"script": "src", "img": "src", "link": "href"}.get(tag, "")
        self.addresses += [value for key, value in attrs if key == name and value]


def test_pictures_are_drawn_by_a_script_of_the_site(site: Path) -> None:
    page = (site / "connector-protocol.html").read_text()
    assert '<pre class="mermaid">' in page
    assert 'src="assets/mermaid/start.mjs"' in page
    assert (site / "assets" / "mermaid" / "index.js").exists()


def test_search_finds_an_option_and_a_public_name(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    text = {one["location"]: one["title"] + one["text"] for one in index["docs"]}
    assert any("--take-over" in text[place] for place in text if place.startswith("reference/cli.html"))
    assert any("SegmentClient" in text[place] for place in text if place.startswith("reference/python.html"))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_search_and_pictures_work_without_the_internet(site: Path) -> None:
    """In a browser that reaches nothing but the site."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser's driver is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever).start()
        root = f"http://127.0.0.1:{server.server_port}/"
        try:
            with playwright.sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page()
                page.set_default_timeout(SECONDS_MAX * 1000)
                asked: list[str] = []
                page.on("request", lambda request: asked.append(request.url))
                page.route(lambda url: not url.startswith(root), lambda route: route.abort())
                page.goto(f"{root}connector-protocol.html")
                page.locator("div.mermaid").first.wait_for()  # in the place of its text
                page.get_by_placeholder("Search").click()
                page.get_by_placeholder("Search").press_sequentially("SegmentClient")
                page.locator(".md-search-result__link[href*='reference/python']").first.wait_for()
                browser.close()
        finally:
            server.shutdown()
    assert [url for url in asked if not url.startswith((root, "data:", "blob:"))] == []


def test_links_that_leave_the_pages_folder_lead_to_pages_of_the_site(site: Path) -> None:
    assert 'href="repository/contrib/prometheus/alerts.yaml.html"' in (site / "operating.html").read_text()
