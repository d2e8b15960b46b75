"""`penstock top` on a screen of 80×24, driven by its keys, in front of a real worker."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("textual", reason="Textual is not installed")

from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from penstock.cli.connect import local_worker
from penstock.cli.top.feed import Feed, Place, Seen
from penstock.cli.top.pages import banner
from penstock.cli.top.screen import TopApp
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from penstock.spark.run.generation import Generation
from tests.delivery.merging import Merging
from tests.support.waiting import eventually_with
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

SIZE = (80, 24)


@dataclass
class Filled:
    """A worker with a source, a pipeline that has delivered two epochs, and one whose sink refuses a third. Each has a
    sink `web`.
    """

    process: WorkerProcess

    @property
    def data(self) -> Path:
        return self.process.data


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("top")
    with WorkerProcess(folder / "data") as process, _filled(process, folder):
        yield Filled(process)


@contextmanager
def _filled(process: WorkerProcess, folder: Path) -> Iterator[None]:
    """The pipelines send heartbeats until the end, as their drivers would."""
    lines = folder / "lines"
    lines.write_text("".join(f"line {number}\n" for number in range(300)))
    command = [sys.executable, "-m", "penstock", "send", str(lines), "--source", "tills", "--stream", "s"]
    subprocess.run([*command, "--data", str(process.data)], check=True, capture_output=True)
    address = local_worker(process.data).http
    with CoordinatorClient(address, 5) as client, SegmentClient(process.address) as segments:
        files = {name: SinkSpec("out", f"file:{folder / name}") for name in ("files", "web")}
        client.bind("orders", files)
        orders = Merging(client, segments, "orders")
        orders.epoch([b"one"])
        orders.epoch([b"two", b"three"])
        client.bind("broken", {"web": SinkSpec("out", "http://127.0.0.1:1/in")})
        broken = Merging(client, segments, "broken")
        broken.epoch([b"one"])
    drivers = [Generation(name, address, one.generation, {}) for name, one in (("orders", orders), ("broken", broken))]
    try:
        yield
    finally:
        for one in drivers:
            one.abandon()


class Terminal:
    """What a person sees and types."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """Of the page, all of them."""
        return [str(option.prompt) for option in self.app.query_one(OptionList).options]

    @property
    def text(self) -> str:
        """Of the whole screen."""
        tops = [self.app.query_one(f"#{name}", Static) for name in ("title", "banner")]
        return "\n".join([*(str(one.visual) for one in tops if one.display), *self.lines])

    def starts(self, *starts: str) -> bool:
        """Whether lines with these starts follow each other."""
        found = zip(*(self.lines[number:] for number in range(len(starts))), strict=False)
        return any(all(line.startswith(one) for line, one in zip(lines, starts, strict=True)) for lines in found)

    @property
    def marked(self) -> str:
        option = self.app.query_one(OptionList).highlighted_option
        return "" if option is None else str(option.prompt)

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually_with(self.pilot.pause, condition, lambda: self.text)

    async def mark(self, text: str) -> None:
        """Moves the mark down to the first line with this text."""
        await self.until(lambda: any(text in line for line in self.lines))
        await self.pilot.press("home")
        while text not in self.marked:
            before = self.app.query_one(OptionList).highlighted
            await self.pilot.press("down")
            assert self.app.query_one(OptionList).highlighted != before, self.text


def top(worker: Filled) -> TopApp:
    return TopApp(Feed(None, worker.data))


async def test_what_blocks_progress_comes_first_and_rows_open_pages(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.until(lambda: terminal.starts("! pipeline broken is blocked by sink web"))
        await terminal.until(lambda: terminal.starts("  PIPELINE", "! broken", "  orders"))
        assert all(len(line) <= SIZE[0] - 2 for line in terminal.lines)

        await terminal.mark("  orders")
        await pilot.press("enter")
        assert app.place == Place("pipeline", "orders")
        assert app.query_one(OptionList).highlighted == 0, "a page begins at its top"
        await terminal.until(lambda: any(line.strip().startswith("COMPLETE EPOCH") for line in terminal.lines))
        complete = terminal.lines[[line.strip()[:14] for line in terminal.lines].index("COMPLETE EPOCH") + 1]
        assert complete.split()[0] == "1", "the newest comes first"
        await terminal.mark(complete)
        await pilot.press("enter")
        assert app.place == Place("epoch", "1", "orders")
        await terminal.until(lambda: "of delivery" in terminal.text)
        await pilot.press("escape")
        assert app.place == Place("pipeline", "orders")
        await terminal.until(lambda: terminal.marked.split()[:1] == ["1"])
        await terminal.mark("files")
        await pilot.press("enter")
        await terminal.until(lambda: "votes in two-phase commit" in terminal.text)
        await pilot.press("o")
        assert app.place == Place()


async def test_a_sink_shows_the_epochs_that_it_lacks_and_an_epoch_what_it_waits_for(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.mark("web")
        await terminal.mark("! web")
        await pilot.press("l")
        await terminal.until(lambda: "EPOCH NOT DELIVERED" in terminal.text)
        assert app.place == Place("sink", "web", "broken")
        await terminal.until(lambda: any(line.split()[:2] == ["!", "0"] for line in terminal.lines))
        await terminal.mark("! " + next(line for line in terminal.lines if line.split()[:2] == ["!", "0"])[2:])
        await pilot.press("enter")
        await terminal.until(lambda: "! sink web (out): " in terminal.text and "attempts" in terminal.text)


async def test_a_sink_is_not_blamed_for_one_of_the_same_name_of_another_pipeline(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.until(lambda: any(line.split()[:2] == ["web", "orders"] for line in terminal.lines))
        line = next(line for line in terminal.lines if line.split()[:2] == ["web", "orders"])
        await terminal.mark(line[: line.index("orders") + len("orders")])
        await pilot.press("enter")
        await terminal.until(lambda: terminal.starts("sink web of orders"))
        assert "blocked by sink web" not in terminal.text


async def test_a_source_shows_its_facts(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.mark("tills")
        await pilot.press("enter")
        await terminal.until(lambda: "300 events since the start" in terminal.text)
        await terminal.until(lambda: "events/s" in terminal.text)


async def test_keys_help_and_end(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.until(lambda: terminal.lines)
        await pilot.press("question_mark")
        assert "these keys" in str(app.screen.query_one("#keys", Static).visual)
        await pilot.press("x")
        await terminal.until(lambda: len(app.screen_stack) == 1)
        await pilot.press("p")
        assert "paused" in str(app.query_one("#foot", Static).visual)
        await pilot.press("p", "ctrl+c")
    assert app.return_code == 0


async def test_it_continues_when_the_worker_is_back(worker: Filled) -> None:
    app = top(worker)
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.until(lambda: any("orders" in line for line in terminal.lines))
        worker.process.kill()
        await terminal.until(lambda: "What you see is" in terminal.text)
        assert any("orders" in line for line in terminal.lines), "what was seen last stays"
        worker.process.start()
        await terminal.until(lambda: "What you see is" not in terminal.text)
        await terminal.until(lambda: "penstock" in terminal.text and "up 0 s" not in terminal.text)
        await pilot.press("q")
    assert app.return_code == 0


async def test_it_waits_for_a_worker_that_is_not_there(tmp_path: Path) -> None:
    app = TopApp(Feed(None, tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        terminal = Terminal(app, pilot)
        await terminal.until(lambda: "no worker runs on" in terminal.text)
        assert "Asking again" in terminal.text


def test_no_line_is_wider_than_the_screen_and_text_is_plain() -> None:

    lines = banner(Seen(problem="no worker\x1b[2J answers " * 20), 0.0, 40)
    assert len(lines) == 4
    assert all(len(line) <= 40 and isinstance(line, Text) for line in lines)
    assert all("\x1b" not in line.plain for line in lines)
