"""A real disk that is full at one step: that of the worker's data, or that of the sinks and backups. Needs root."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.core.errors import DiskFull, NoRoom
from penstock.core.sizes import MIB
from tests.coordinator.driver import Checkpoint
from tests.operate.restores import made_places
from tests.operate.site import RETAINS, STORE, Sender, Site, running_site
from tests.support.small_disks import fill_disk, make_image, mounted
from tests.support.waiting import until

KINDS = ("file", "sqlite")
EVENTS = 40
PADDING = 4000
"""Together they need more room than what is left in files that exist."""

_NO_SPACE = ("No space left", "full", "no room")


class Scene:
    """A worker on one small disk, its sinks and backups on another."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.disks = {
            name: stack.enter_context(mounted(make_image(folder / f"{name}.img", 16 * MIB), folder / name))
            for name in ("data", "sinks")
        }
        self.data = self.disks["data"] / "worker"
        self.places = made_places(stack, self.disks["sinks"], KINDS)
        self._checkpoints = {kind: Checkpoint() for kind in KINDS}
        self.upto = 0

    @contextmanager
    def running(self) -> Iterator[tuple[Site, Sender]]:
        sinks = {kind: place.url for kind, place in self.places.items()}
        with (
            running_site(self.data, sinks, self._checkpoints, RETAINS, store=STORE, retry_seconds=0.5) as site,
            site.sending(self.upto, PADDING) as sender,
        ):
            yield site, sender

    def serve(self, during: Callable[[Site, Sender], str] | None = None) -> str:
        """Run the worker until the next events are complete; returns what was seen before."""
        with self.running() as (site, sender):
            found = "" if during is None else during(site, sender)
            for driver in site.drivers.values():
                driver.start()
            self.upto = sender.upto = self.upto + EVENTS
            site.run_until_complete(sender)
            until(lambda: site.health()[0] == 200, site.health)
        return found

    def check(self) -> None:
        for kind, place in self.places.items():
            assert [*map(int, place.rows())] == [*range(1, self.upto + 1)], kind


def start(scene: Scene) -> str:
    rest = fill_disk(scene.disks["data"])
    return scene.serve(lambda site, sender: _send_until_full(scene, site, sender, rest))


def ingest(scene: Scene) -> str:
    return scene.serve(lambda site, sender: _send_until_full(scene, site, sender, fill_disk(scene.disks["data"])))


def _send_until_full(scene: Scene, site: Site, sender: Sender, rest: Path) -> str:
    scene.upto = sender.upto = scene.upto + EVENTS
    until(lambda: site.health()[0] == 503, site.health)
    found = site.health()[1]
    rest.unlink()
    return found


def staging(scene: Scene) -> str:
    def during(site: Site, sender: Sender) -> str:
        """Events are stored, and the pipelines have not read them yet."""
        for driver in site.drivers.values():
            driver.start()
        scene.upto = sender.upto = scene.upto + EVENTS // 2
        until(lambda: any(one.lag_bytes for one in site.client.pipelines()), site.describe)
        rest = fill_disk(scene.disks["data"])
        try:
            while True:
                for driver in site.drivers.values():
                    driver.epoch()
                sender.upto += 1
        except NoRoom as error:
            found = str(error)
        scene.upto = sender.upto
        rest.unlink()
        return found

    return scene.serve(during)


def delivery(scene: Scene) -> str:
    def during(site: Site, sender: Sender) -> str:
        rest = fill_disk(scene.disks["sinks"])
        for driver in site.drivers.values():
            driver.start()
        scene.upto = sender.upto = scene.upto + EVENTS
        reasons: dict[str, str] = {}

        def all_refuse() -> bool:
            for driver in site.drivers.values():
                driver.epoch()
            reasons.update({one.pipeline: one.reason for one in site.client.sinks() if one.reason})
            return reasons.keys() == set(KINDS)

        until(all_refuse, site.describe)
        rest.unlink()
        return "; ".join(f"{kind}: {reasons[kind]}" for kind in KINDS)

    return scene.serve(during)


def backup(scene: Scene) -> str:
    archive, restored = scene.disks["sinks"] / "backups", scene.data.with_name("restored")
    with scene.running() as (site, _):
        rest = fill_disk(scene.disks["sinks"])
        refused = _run("backup", str(archive), "--no-checkpoints", "--data", str(scene.data))
        assert isinstance(refused, DiskFull), refused
        rest.unlink()
        again = _run("backup", str(archive), "--no-checkpoints", "--data", str(scene.data))
        assert again is None, again
        assert site.health()[0] == 200, site.health()
    assert _run("restore", str(archive), "--data", str(restored)) is None
    scene.data = restored
    scene.serve()
    return f"{refused}. {refused.hint}"


STEPS = {"start": start, "ingest": ingest, "staging": staging, "delivery": delivery, "backup": backup}


def run_cell(folder: Path, step: str) -> str:
    """What the worker, the sinks or the command reported on the full disk. Raises AssertionError if they did not report
    it, or if anything is lost or doubled afterwards.
    """
    with ExitStack() as stack:
        scene = Scene(stack, folder)
        scene.serve()
        found = STEPS[step](scene)
        scene.check()
    assert any(text in found for text in _NO_SPACE), found
    assert "needs 0 B" not in found, found
    return found


def _run(*arguments: str) -> BaseException | None:
    done = CliRunner().invoke(app, [*arguments])
    return done.exception
