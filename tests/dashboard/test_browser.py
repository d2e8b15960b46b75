"""The dashboard in a real browser, in front of a real worker."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.top.feed import Feed, Place
from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import Forbidden, PenstockError
from penstock.protocol.api.pipelines import QueryFailure
from tests.dashboard.branches import NEWEST_MS, branches
from tests.dashboard.branches import PIPELINE as TAKINGS
from tests.spark.dead_letters.putting import PIPELINE, Putting, letter
from tests.support.waiting import SECONDS_MAX, until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="the browser's driver is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]

SHOTS = Path(".pytest_cache") / "dashboard"
"""The screenshots of the last run, to be looked at."""
SIZES = {"wide": (1280, 800), "phone": (390, 844)}


@dataclass
class Site:
    worker: WorkerProcess
    root: str
    """The address of its pages, without a slash at the end."""
    putting: Putting

    def log_in(self, page: "Page", token: str) -> None:
        page.goto(f"{self.root}/login")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{self.root}/")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("dashboard")
    with ExitStack() as stack:
        options = ["--store", f"file://{folder}/store", "--shard", "0"]
        worker = stack.enter_context(WorkerProcess(folder / "data", *options))
        client, segments = stack.enter_context(_client(worker)), stack.enter_context(_segment_client(worker))
        putting = _fill(worker, folder, client, segments)
        failure = QueryFailure("the function divides by zero", 3, None)
        stack.enter_context(_driver(worker, PIPELINE, putting.generation, failure))
        generation = stack.enter_context(branches(client, segments, worker.connector_port, folder))
        stack.enter_context(_driver(worker, TAKINGS, generation))
        command = [sys.executable, "-m", "penstock", "dashboard", "--data", str(worker.data), "--port", "0"]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder))
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "dashboard: " in line)
            yield Site(worker, line.partition("dashboard: ")[2].partition("/ ")[0], putting)
        finally:
            process.terminate()
        assert "Traceback" not in process.stderr.read()


MARKUP = b"<img src=x onerror='document.title = 1'>\xff\x00\n```\n"
LAST_ID = 1_763_560_000_123_456_789
"""A time in nanoseconds. Browsers calculate with 53 bits."""


def _fill(worker: WorkerProcess, folder: Path, client: CoordinatorClient, segments: SegmentClient) -> Putting:
    """Events of sources, and a pipeline with a sink and dead letters."""
    lines = folder / "lines"
    lines.write_text("".join(f'{{"number": {number}}}\n' for number in range(300)))
    command = [sys.executable, "-m", "penstock", "send", str(lines), "--source", "tills", "--stream", "s"]
    subprocess.run([*command, "--data", str(worker.data)], check=True, capture_output=True)
    clocks = Source(f"127.0.0.1:{worker.connector_port}", source="clocks")
    clocks.stream(MARKUP.decode(errors="replace").partition("\x00")[0], lambda _: iter([Message(LAST_ID, MARKUP)]))
    clocks.run()
    putting = Putting(client, segments)
    client.bind(PIPELINE, {"files": SinkSpec("out", f"file:{folder}/results")})
    putting.letters([letter(1), letter(2, b'{"amount": "many"}'), letter(3), letter(4), letter(5, MARKUP)])
    return putting


@contextmanager
def _driver(
    worker: WorkerProcess, pipeline: str, generation: int, failure: QueryFailure | None = None
) -> Iterator[None]:
    """A driver that stays, also if its query has failed."""
    ends = Event()

    def beat() -> None:
        with _client(worker, 0) as client:
            while not ends.wait(1):
                with suppress(PenstockError):
                    client.heartbeat(pipeline, generation, failed=failure is not None, failure=failure)

    thread = Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _client(worker: WorkerProcess, retry_seconds: float = 5) -> CoordinatorClient:
    return CoordinatorClient(f"127.0.0.1:{worker.http_port}", retry_seconds, token=_token(worker))


def _segment_client(worker: WorkerProcess) -> SegmentClient:
    return SegmentClient(worker.address, token=_token(worker))


def _token(worker: WorkerProcess) -> str:
    return (worker.data / "token").read_text().strip()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def owner(browser: "Browser", site: Site) -> Iterator["Page"]:
    """A page of the owner."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(SECONDS_MAX * 1000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    site.log_in(page, _token(site.worker))
    yield page
    context.close()
    assert not problems


_DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Two frames later charts have their new size."""


def shoot(page: "Page", name: str) -> None:
    """Wide and narrow, light and dark. Nothing may be wider than a phone."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.evaluate(_DRAWN)
            page.screenshot(path=SHOTS / f"{name}-{size}-{theme}.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("overview", "/", "the function divides by zero"),
        ("source", "/source?name=tills", "300 events since the start"),
        ("pipeline", f"/pipeline?name={PIPELINE}", "cut up to 0, merged up to 0, complete"),
        ("sink", f"/sink?pipeline={PIPELINE}&name=files", "ready for the next epoch"),
        ("dead-letters", "/dead-letters", "reason 1"),
        ("segments", "/segments", "connector/tills/"),
        ("cluster", "/cluster", "served"),
        ("settings", "/settings", "A changed application"),
        ("source-late", "/source?name=branches", "100.0 s behind the newest event"),
        ("pipeline-windows", f"/pipeline?name={TAKINGS}", "6 windows"),
        ("sink-refuses", f"/sink?pipeline={TAKINGS}&name=full", "voted no"),
    ],
)
def test_each_page_shows_live_data(owner: "Page", site: Site, name: str, path: str, text: str) -> None:
    owner.goto(site.root + path)
    owner.get_by_text(re.compile(text)).first.wait_for()
    shoot(owner, name)


def test_what_blocks_is_marked_and_named_as_in_the_status(owner: "Page", site: Site) -> None:
    with _client(site.worker) as client:
        sentence = next(str(one) for one in client.status().blockages if one.is_blocking)
    owner.goto(f"{site.root}/")
    owner.locator(".trouble-box", has_text=sentence).first.wait_for()
    owner.locator("svg.flow a.trouble:visible", has_text=f"⚠ {PIPELINE}").wait_for()
    owner.locator("svg.flow text.label:visible", has_text="events/s").first.wait_for()


_VALUES = """(name) => [...document.querySelectorAll("[id^=c]")]
  .map((one) => getElement(Number(one.id.slice(1)))?.chart?.getOption().series ?? [])
  .flat().filter((one) => one.name === name).flatMap((one) => one.data).map((one) => one[1])"""
"""Of the charts' series of this name."""


def test_charts_have_the_values_of_the_last_hour(owner: "Page", site: Site) -> None:
    for path, series in (("source?name=tills", "events"), ("", "tills")):
        owner.goto(f"{site.root}/{path}")
        owner.wait_for_function(f"() => ({_VALUES})('{series}').some((value) => value > 0)")


def test_streams_are_listed_with_their_positions(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/source?name=tills")
    row = owner.get_by_role("row").filter(has=owner.get_by_role("cell", name="s", exact=True))
    row.get_by_role("cell", name="300", exact=True).wait_for()


def cells(page: "Page", *texts: str) -> None:
    """Waits for a row that has these cells, in this order, perhaps with others between them."""
    row = page.get_by_role("row")
    for text in texts:
        row = row.filter(has=page.get_by_role("cell", name=text, exact=True))
    row.first.wait_for()
    found = row.first.get_by_role("cell").all_inner_texts()
    places = [found.index(text) for text in texts]
    assert places == sorted(places), found


def test_a_late_stream_is_named_with_its_lag_and_what_waits_for_it(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/source?name=branches")
    cells(owner, "harbour", "active", "1", "2025-11-19 13:46:40 UTC", "100.0 s", f"⚠ {TAKINGS}")
    cells(owner, "north", "active", "1", "2025-11-19 13:48:20 UTC", "0.0 s", "")
    cells(owner, "test", "streaming", "1", "64", "0 B")
    facts = owner.locator("dl").inner_text()
    assert f"Watermark of {TAKINGS}\n2025-11-19 13:46:40 UTC, 100.0 s behind the newest event" in facts
    assert "Waits for\n" in facts
    assert "harbour" in facts.partition("Waits for\n")[2].partition("\n")[0]
    assert "2 connected, which may send" in facts
    with closing(Feed(None, site.worker.data)) as feed:  # penstock top shows the same facts
        assert feed.look(Place("source", "branches")).newest == NEWEST_MS * 1000


def test_windows_and_what_an_epoch_waits_for_are_in_the_pages_of_its_pipeline_and_its_sink(
    owner: "Page", site: Site
) -> None:
    owner.goto(f"{site.root}/pipeline?name={TAKINGS}")
    cells(owner, "per branch", "6", "3", "2.0 KiB", "5")
    refused = owner.get_by_role("row").filter(has=owner.get_by_role("cell", name="refused", exact=True))
    refused.get_by_role("cell", name=re.compile(r"archive.*; full, attempt \d+.*votes no")).wait_for()
    owner.goto(f"{site.root}/sink?pipeline={TAKINGS}&name=full")
    refused.get_by_role("cell", name=re.compile(r"^full, attempt \d+.*votes no$")).wait_for()
    refused.get_by_role("cell", name="archive", exact=True).wait_for()
    cells(owner, "full", "votes", "voted no")
    owner.get_by_role("row").filter(has=owner.get_by_role("cell", name="archive", exact=True)).get_by_role(
        "cell", name="votes", exact=True
    ).wait_for()
    owner.get_by_role("button", name="Try again now").click()
    owner.get_by_text(f"Deliver the next epoch of {TAKINGS} now?").wait_for()
    owner.get_by_role("dialog").get_by_role("button", name="Try again now").click()
    owner.get_by_text("The next attempt starts now").wait_for()


def test_the_overview_changes_without_reloading(owner: "Page", site: Site, tmp_path: Path) -> None:
    owner.goto(f"{site.root}/")
    owner.locator("svg.flow:visible", has_text="tills").wait_for()
    assert "latecomer" not in owner.inner_text("body")
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    command = [sys.executable, "-m", "penstock", "send", str(lines), "--source", "latecomer", "--stream", "s"]
    subprocess.run([*command, "--data", str(site.worker.data)], check=True, capture_output=True)
    owner.locator("svg.flow:visible", has_text="latecomer").wait_for()


def test_events_can_be_looked_at(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/segments")
    filled = next(one["name"] for one in _segments(site.worker) if one["length"])
    owner.get_by_role("cell", name=filled).click()
    owner.get_by_text('{"number": 0}').first.wait_for()
    owner.goto(f"{site.root}/segments?name={filled}")
    owner.get_by_text('{"number": 0}').first.click()
    owner.get_by_text("message 1").first.wait_for()
    shoot(owner, "events")
    first, second = (owner.locator(".q-expansion-item").nth(number) for number in (0, 1))
    offset = second.inner_text().partition(":")[0]
    owner.get_by_label("From offset").fill(offset)
    owner.get_by_role("button", name="Show").click()
    first.filter(has_text=f'{offset}: {{"number": 1}}').wait_for()
    owner.get_by_label("Or from a time").fill("2000-01-01T00:00:00Z")
    owner.get_by_role("button", name="Show").click()
    first.filter(has_text='{"number": 0}').wait_for()
    owner.get_by_role("button", name="Next events").click()
    first.filter(has_text='{"number": 50}').wait_for()
    owner.get_by_label("Or from a time").fill("yesterday")
    owner.get_by_role("button", name="Show").click()
    owner.get_by_text("'yesterday' is not a time").wait_for()


def test_a_segment_without_its_first_events_can_be_looked_at(owner: "Page", site: Site) -> None:
    with _segment_client(site.worker) as client:
        client.create("numbers")
        with client.appender("numbers") as appender:
            for number in range(100, 104):
                appender.append(b"%d" % number)
        third = [*client.events("numbers")][2].offset
        client.truncate("numbers", third)
    owner.goto(f"{site.root}/segments?name=numbers")
    first = owner.locator(".q-expansion-item").first
    first.filter(has_text=f"{third}: 102").wait_for()
    gone = owner.get_by_text(f"Events before offset {third} are not retained any more.")
    assert gone.count() == 0
    owner.get_by_label("From offset").fill("0")
    owner.get_by_role("button", name="Show").click()
    gone.wait_for()
    first.filter(has_text=f"{third}: 102").wait_for()


def test_a_dead_letter_is_looked_at_and_replayed(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/dead-letters")
    row = owner.get_by_role("row").filter(has=owner.get_by_role("cell", name="reason 2"))
    row.get_by_role("button").press("Enter")
    owner.get_by_text('{"amount": "many"}').first.wait_for()
    owner.get_by_text("hex", exact=True).click()
    owner.get_by_text("7b 22 61 6d").wait_for()
    shoot(owner, "dead-letter")
    owner.get_by_role("button", name="Replay this one").click()
    owner.get_by_role("button", name="Replay", exact=True).click()
    owner.get_by_text("1 replayed").wait_for()
    owner.get_by_role("row", name="reason 2").get_by_role("cell", name="replayed").wait_for()


def test_on_a_phone_a_card_opens(owner: "Page", site: Site) -> None:
    owner.set_viewport_size({"width": 390, "height": 844})
    owner.goto(f"{site.root}/dead-letters")
    owner.get_by_text("reason 2", exact=True).click()
    shown = owner.get_by_role("dialog").get_by_text('{"amount": "many"}')
    shown.wait_for()
    owner.keyboard.press("Escape")
    shown.wait_for(state="hidden")
    card = owner.locator(".q-table__grid-item-card", has_text="reason 2")
    card.get_by_role("button").focus()
    owner.keyboard.press("Enter")
    shown.wait_for()
    owner.keyboard.press("Escape")
    card.get_by_role("checkbox").click()
    owner.set_viewport_size({"width": 1280, "height": 800})


def test_names_and_bytes_are_never_markup(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/source?name=clocks")
    owner.get_by_role("cell", name=str(LAST_ID), exact=True).wait_for()
    owner.get_by_role("cell", name="<img src=x").wait_for()
    owner.goto(f"{site.root}/dead-letters")
    owner.get_by_role("row", name="reason 5").get_by_role("button").click()
    owner.get_by_text("<img src=x onerror='document.title = 1'>\\xff\\x00").wait_for()
    owner.goto(
        f"{site.root}/segments?name={next(one['name'] for one in _segments(site.worker, 'clocks') if one['length'])}"
    )
    owner.locator(".q-expansion-item", has_text="<img src=x").click()
    owner.get_by_text("<img src=x onerror='document.title = 1'>\\xff\\x00").nth(1).wait_for()
    assert owner.locator("main img, .q-page img").count() == 0
    assert owner.title() == "Segments · Penstock"


def test_only_selected_dead_letters_are_replayed(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/dead-letters")
    selected = owner.get_by_role("button", name="Replay selected")
    owner.get_by_role("row", name="reason 1").get_by_role("checkbox").click()
    owner.locator("button:not([disabled])", has_text="Replay selected (1)").wait_for()
    owner.get_by_role("row", name="reason 4").get_by_role("checkbox").click()
    owner.get_by_role("button", name="Replay selected (2)").click()
    owner.get_by_text("Fix the cause first").wait_for()
    owner.get_by_role("button", name="Replay", exact=True).click()
    owner.get_by_text("2 replayed").wait_for()
    for reason, state in (("reason 1", "replayed"), ("reason 3", "waiting"), ("reason 4", "replayed")):
        owner.get_by_role("row", name=reason).get_by_role("cell", name=state).wait_for()
    assert selected.is_disabled()
    whole = owner.get_by_role("button", name="Replay all")
    whole.click()
    owner.get_by_text("Send all dead letters of orders that were not replayed yet").wait_for()
    owner.get_by_role("button", name="Replay", exact=True).click()
    owner.get_by_role("row", name="reason 3").get_by_role("cell", name="replayed").wait_for()
    owner.get_by_role("row", name="reason 5").get_by_role("cell", name="replayed").wait_for()
    assert owner.get_by_role("cell", name="waiting", exact=True).count() == 0
    assert whole.is_disabled()


def test_a_changed_application_is_shown_before_it_is_applied(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/settings")
    editor = owner.locator(".cm-content")
    editor.click()
    editor.fill("connector: [{id: ticks, type: nothing-like-this}]")
    owner.get_by_role("button", name="Show what would change").click()
    owner.get_by_text("nothing-like-this").nth(1).wait_for()
    editor.fill(APPLICATION % "1h")
    owner.get_by_role("button", name="Show what would change").click()
    owner.get_by_text(re.compile(r"\+.*metronome")).first.wait_for()
    shoot(owner, "change")
    _apply(owner)
    owner.get_by_text(re.compile("Revision 1 is deployed")).wait_for()
    until(lambda: "ticks" in _deployed(site.worker))
    owner.get_by_text("What is deployed").click()
    deployed = owner.locator(".q-expansion-item .codehilite")
    deployed.filter(has_text="interval: 1h").wait_for()
    editor.fill(APPLICATION % "2h")
    owner.get_by_role("button", name="Show what would change").click()
    changes = owner.locator(".codehilite:visible", has_text="~ connector ticks:")
    changes.wait_for()
    assert changes.inner_text().split("\n")[1:3] == ["-     interval: 1h", "+     interval: 2h"]
    _apply(owner)
    owner.get_by_text("Revision 2 is deployed").wait_for()
    deployed.filter(has_text="interval: 2h").wait_for()
    assert "Revision\n2\n" in owner.locator("dl").first.inner_text()


def test_what_somebody_else_has_deployed_is_not_undone(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/settings")
    editor = owner.locator(".cm-content")
    editor.click()
    editor.fill(APPLICATION % "3h")
    owner.get_by_role("button", name="Show what would change").click()
    changes = owner.locator(".codehilite:visible")
    changes.filter(has_text="+     interval: 3h").wait_for()
    with ApplicationClient(f"127.0.0.1:{site.worker.http_port}", 5, token=_token(site.worker)) as client:
        before = client.application()
        theirs = replace(before.deployment.connectors["ticks"], config={"interval": "4h"})
        connectors = {**before.deployment.connectors, "ticks": theirs}
        revision = client.apply(replace(before.deployment, connectors=connectors), "theirs.yaml")["revision"]
        _apply(owner)
        owner.get_by_text(f"revision {revision} is deployed, not {before.revision}").wait_for()
        changes.filter(has_text="-     interval: 4h").filter(has_text="+     interval: 3h").wait_for()
        assert client.application().deployment.connectors["ticks"].config == {"interval": "4h"}
        owner.get_by_text("theirs.yaml").wait_for()
        _apply(owner)
        owner.get_by_text(f"Revision {revision + 1} is deployed").wait_for()
        assert client.application().deployment.connectors["ticks"].config == {"interval": "3h"}


APPLICATION = (
    "connector: [{id: ticks, type: metronome, config: {interval: %s}, codec: json}, "
    "{id: gone, type: 'null', codec: json}]\n"
    "binding: {id: main, links: {connector/ticks/out: pipeline/system::passthrough/in, "
    "pipeline/system::passthrough/out: connector/gone/in}}"
)


def _apply(page: "Page") -> None:
    page.get_by_role("button", name="Apply", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()


def test_a_pipeline_that_was_removed_is_listed_until_it_is_dropped(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/settings")
    editor = owner.locator(".cm-content")
    for pipelines, change in ((("new", "old"), "+ pipeline old:"), (("new",), "- pipeline old:")):
        editor.click()
        editor.fill(_passing(*pipelines))
        owner.get_by_role("button", name="Show what would change").click()
        changes = owner.locator(".codehilite:visible", has_text=change)
        changes.wait_for()
        _apply(owner)
        changes.wait_for(state="detached")
    owner.get_by_text("Pipelines that the application had before").wait_for()
    owner.get_by_role("cell", name="old", exact=True).click()
    owner.get_by_text("Drop pipeline old? It has 0 undelivered epochs and blocks").wait_for()
    with _client(site.worker) as client:
        assert "old" in [known.name for known in client.pipelines()]
        owner.get_by_role("dialog").get_by_role("button", name="Drop").click()
        owner.get_by_text("old is dropped").wait_for()
        assert "old" not in [known.name for known in client.pipelines()]
    owner.get_by_role("cell", name="old", exact=True).wait_for(state="detached")


def _passing(*pipelines: str) -> str:
    """An application with these pipelines."""
    specs = ", ".join(f"{{id: {name}, spark: 'system::passthrough'}}" for name in pipelines)
    into = ", ".join(f"pipeline/{name}/in" for name in pipelines)
    out = ", ".join(f"pipeline/{name}/out: connector/gone/in" for name in pipelines)
    return (
        "connector: [{id: ticks, type: metronome, config: {interval: 3h}, codec: json}, "
        "{id: gone, type: 'null', codec: json}]\n"
        f"pipeline: [{specs}]\nbinding: {{id: main, links: {{connector/ticks/out: [{into}], {out}}}}}"
    )


def test_text_with_backticks_is_shown_as_it_is(owner: "Page", site: Site) -> None:
    owner.goto(f"{site.root}/settings")
    editor = owner.locator(".cm-content")
    editor.click()
    editor.fill(
        "connector: [{id: quoted, type: metronome, config: {interval: 1h}, codec: json,"
        " schema: \"a STRING COMMENT '\\n```\\n# first\\n````\\n# second'\"}, {id: gone, type: 'null', codec: json}]\n"
        "binding: {id: main, links: {connector/quoted/out: pipeline/system::passthrough/in, "
        "pipeline/system::passthrough/out: connector/gone/in}}"
    )
    owner.get_by_role("button", name="Show what would change").click()
    owner.locator(".codehilite:visible", has_text="# second").wait_for()
    assert owner.locator(".codehilite:visible").count() == 1
    assert owner.locator("h1").count() == 0


def test_what_does_not_exist_has_no_empty_page(owner: "Page", site: Site) -> None:
    for path, text in (
        ("pipeline?name=gone", "there is no pipeline 'gone'"),
        ("source", "there is no source ''"),
        ("dead-letters?name=gone", "there is no pipeline 'gone'"),
        ("dead-letters?kind=source&name=nothing", "there is no source 'nothing'"),
    ):
        owner.goto(f"{site.root}/{path}")
        owner.get_by_text(text).wait_for()
        assert owner.get_by_role("table").count() == 0


def test_keys_open_pages_and_switch_to_dark(owner: "Page", site: Site) -> None:
    owner.emulate_media(color_scheme="light")
    owner.goto(f"{site.root}/")
    owner.locator("svg.flow:visible").wait_for()
    owner.keyboard.press("t")
    owner.locator("body.body--dark").wait_for()
    owner.keyboard.press("t")
    owner.locator("body.body--light").wait_for()
    owner.keyboard.press("c")
    owner.wait_for_url(f"{site.root}/cluster")
    owner.get_by_text("served").wait_for()
    owner.keyboard.press("Tab")
    owner.keyboard.press("Tab")
    assert owner.evaluate("document.activeElement.tagName") == "BUTTON"
    owner.keyboard.press("e")
    owner.wait_for_url(f"{site.root}/settings")
    owner.locator(".cm-content").click()
    owner.keyboard.type("cods")
    owner.locator(".cm-content", has_text="cods").wait_for()
    assert owner.url == f"{site.root}/settings"
    owner.goto(f"{site.root}/dead-letters")
    owner.get_by_role("row", name="reason 2").get_by_role("button").click()
    shown = owner.get_by_role("dialog")
    shown.get_by_text('{"amount": "many"}').wait_for()
    owner.keyboard.press("c")
    assert owner.url == f"{site.root}/dead-letters"
    owner.keyboard.press("Escape")
    shown.wait_for(state="hidden")
    owner.keyboard.press("c")
    owner.wait_for_url(f"{site.root}/cluster")


def test_the_first_switch_is_seen_also_where_the_browser_prefers_dark(browser: "Browser", site: Site) -> None:
    with browser.new_context(color_scheme="dark") as context:
        page = context.new_page()
        page.set_default_timeout(SECONDS_MAX * 1000)
        site.log_in(page, _token(site.worker))
        page.locator("body.body--dark").wait_for()
        page.locator("svg.flow:visible").wait_for()
        page.keyboard.press("t")
        page.locator("body.body--light").wait_for()


def _segments(worker: WorkerProcess, source: str = "tills") -> Sequence[Mapping[str, Any]]:
    with _client(worker) as client:
        return client.segments(f"connector/{source}/").segments


def _deployed(worker: WorkerProcess) -> list[str]:
    with _client(worker) as client:
        return [one.name for one in client.status().connectors]


def _added(site: Site, name: str, *options: str) -> str:
    """The token of a new principal."""
    command = [sys.executable, "-m", "penstock", "access", "add", name, *options, "--data", str(site.worker.data)]
    added = subprocess.run(command, check=True, capture_output=True, text=True)
    return added.stdout.split()[-1]


def test_a_stranger_is_asked_for_a_token_and_a_reader_cannot_change_anything(browser: "Browser", site: Site) -> None:
    token = _added(site, "looker", "--role", "read")
    with browser.new_context(reduced_motion="reduce") as context:
        page = context.new_page()
        page.set_default_timeout(SECONDS_MAX * 1000)
        page.goto(f"{site.root}/dead-letters")
        page.wait_for_url(f"{site.root}/login")
        page.get_by_label("Token").wait_for()
        shoot(page, "login")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("the token is not valid").wait_for()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{site.root}/")
        page.get_by_text("looker: read").wait_for()
        page.goto(f"{site.root}/dead-letters")
        page.get_by_role("cell", name="reason 1").click()
        page.get_by_text("value 1").first.wait_for()
        assert page.locator("button", has_text="Replay").count() == 0  # not even a hidden one
        assert page.get_by_role("checkbox").count() == 0
        with (
            CoordinatorClient(f"127.0.0.1:{site.worker.http_port}", 5, token=token) as client,
            pytest.raises(Forbidden, match="has the role read"),
        ):
            client.replay_chosen(PIPELINE, "err", [0])
        page.goto(f"{site.root}/settings")
        page.get_by_text("Your role can view the settings, but not change them.").wait_for()
        assert page.locator(".cm-content").count() == 0
        assert page.locator("button", has_text="Apply").count() == 0
        assert page.locator("button", has_text="Show what would change").count() == 0
        page.goto(f"{site.root}/sink?pipeline={TAKINGS}&name=full")
        cells(page, "full", "votes", "voted no")
        assert page.locator("button", has_text="Try again now").count() == 0
        assert token not in page.content()
        (cookie,) = context.cookies()
        assert token not in str(cookie)
        assert (cookie["sameSite"], cookie["httpOnly"]) == ("Strict", True)
        page.get_by_role("button", name="Menu").click()
        page.get_by_text("Log out looker").click()
        page.wait_for_url(f"{site.root}/login")
        page.goto(f"{site.root}/")
        page.wait_for_url(f"{site.root}/login")
        page.goto(f"{site.root}/login?problem=Call+0900+for+help")
        page.get_by_label("Token").wait_for()
        assert "0900" not in page.content()


def test_a_principal_with_a_prefix_sees_what_that_covers(browser: "Browser", site: Site) -> None:
    token = _added(site, "teller", "--role", "read", "--prefix", "till")
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(SECONDS_MAX * 1000)
        site.log_in(page, token)
        flow = page.locator("svg.flow:visible", has_text="tills")
        flow.wait_for()
        assert "branches" not in flow.inner_html()
        page.goto(f"{site.root}/source?name=tills")
        page.get_by_text("300 events since the start").wait_for()
        page.goto(f"{site.root}/source?name=branches")
        page.get_by_text("there is no source 'branches'").wait_for()


def _answer(site: Site, method: str, path: str, **headers: str) -> int:
    """The status of the dashboard's reply."""
    connection = HTTPConnection(site.root.removeprefix("http://"), timeout=SECONDS_MAX)
    with closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


def test_other_sites_are_refused_at_every_door(site: Site) -> None:
    own = site.root.removeprefix("http://")
    websocket = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    doors: list[tuple[str, str, dict[str, str], int]] = [
        ("GET", "/login", {}, 200),
        ("POST", "/token", {}, 303),
        ("GET", "/_nicegui_ws/socket.io/?EIO=4&transport=websocket", websocket, 101),
    ]
    for method, path, headers, status in doors:
        assert _answer(site, method, path, **headers, Host=own, Origin=site.root) == status
        for foreign in (
            {"Host": own, "Origin": "http://evil.example"},
            {"Host": own, "Origin": "http://127.0.0.1:1"},
            {"Host": "evil.example", "Origin": "http://evil.example"},
            {"Host": "evil.example"},
        ):
            assert _answer(site, method, path, **headers, **foreign) == 403, (path, foreign)


def test_older_dead_letters_are_listed_page_by_page(owner: "Page", site: Site) -> None:
    site.putting.letters([letter(number) for number in range(1000, 1230)])
    owner.goto(f"{site.root}/dead-letters")
    owner.get_by_text("200 are listed: the newest of each port (200 at most).").wait_for()
    owner.get_by_role("cell", name="reason 1229").wait_for()
    owner.get_by_role("button", name="Older").click()
    owner.get_by_text("35 are listed: older ones of each port").wait_for()
    owner.get_by_role("cell", name="reason 1029").wait_for()
    assert not owner.get_by_role("button", name="Older").is_visible()
    owner.get_by_role("button", name="Newest").click()
    owner.get_by_role("cell", name="reason 1229").wait_for()


def test_pages_outlive_the_worker(owner: "Page", site: Site) -> None:
    """One was open before it stopped, the others are opened while it is away."""
    pages = {
        owner: "/",
        owner.context.new_page(): f"/pipeline?name={PIPELINE}",
        owner.context.new_page(): "/dead-letters",
    }
    owner.goto(f"{site.root}/")
    owner.locator("svg.flow:visible").wait_for()
    site.worker.stop()
    for page, path in pages.items():
        if page is not owner:
            page.goto(site.root + path)
        page.get_by_text("cannot be reached").wait_for()
    owner.locator("svg.flow:visible").wait_for()
    site.worker.start()
    for page in pages:
        page.get_by_text("As of").wait_for()
        page.get_by_text("cannot be reached").wait_for(state="hidden")
