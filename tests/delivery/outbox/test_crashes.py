"""A worker that dies between hold, deliver, note and follow: nothing is lost, nothing retained twice, no dead letter
written twice. At each of these places, with what was written last on disk or not.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.connectors.api import Outgoing, StreamGone
from penstock.connectors.interceptors.chain import OutgoingChain
from penstock.connectors.interceptors.join import Joining, JoinOptions
from penstock.delivery.outbox.rows import MakeChain
from penstock.testing.faulty_files import FaultyFiles
from tests.delivery.outbox.scene import A, B, C, SinkScene


class Died(BaseException):
    """No handler of exceptions catches it."""


class Deaths:
    """Counts the operations of a worker on its store and its connector, and kills it at operation `at`."""

    def __init__(self, scene: SinkScene, at: int, *, is_durable: bool) -> None:
        self.at = at
        self.places: list[str] = []
        self.dead = asyncio.Event()
        self._scene = scene
        self._is_durable = is_durable
        store = scene.scene.store
        for name in ("append", "append_all", "truncate", "merge"):
            setattr(store, name, self._around(getattr(store, name), name))
        scene.outsides["x"].before = lambda outgoing: self.pass_by(f"deliver {outgoing.name}")

    def _around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def around(*args: Any, **more: Any) -> Any:
            if name == "truncate" and "/held." not in args[0]:  # truncations by retention happen at any time
                return call(*args, **more)
            self.pass_by(f"before {name}")
            result = call(*args, **more)
            self.pass_by(f"after {name}")
            return result

        return around

    def pass_by(self, place: str) -> None:
        if self.dead.is_set():
            raise Died
        self.places.append(place)
        if len(self.places) == self.at:
            if self._is_durable:
                self._scene.scene.journal.commit()
            self._scene.scene.paused = True
            self.dead.set()
            raise Died


def joined() -> OutgoingChain:
    return OutgoingChain([Joining(JoinOptions(max_elements=3, max_wait_ms=5))])


CHAINS: dict[str, MakeChain | None] = {"plain": None, "joined": joined}


async def prepared(files: FaultyFiles, chain: MakeChain | None = None) -> SinkScene:
    """Four epochs wait for a sink that is not connected. It will open stream A late, and C is gone."""
    scene = SinkScene(files)
    await scene.open()
    x = await scene.add("x", chain)
    x.shy = {A}
    x.is_down = True
    x.trouble = gone
    scene.hosts["x"].disconnected("not yet")
    for number in range(1, 5):
        n = b"%d" % number
        await scene.put_out((A, b"a" + n), (B, b"b" + n), (C, b"c" + n), (A, b"A" + n), (None, b"n" + n))
    return scene


def gone(outgoing: Outgoing) -> Exception | None:
    return StreamGone("it has hung up") if outgoing.stream == C else None


async def play(scene: SinkScene) -> None:
    """The whole scenario: the sink connects, the epochs complete without stream A, which opens and gets everything."""
    host = scene.hosts["x"]
    host.connected()
    await scene.until(lambda: host.users)
    await scene.delivered()
    held = scene.retained_values("x")
    assert len(held) == len(set(held)), "held twice"
    await scene.until(lambda: scene.signals.is_announced("x", A) or not host.outbox_bytes)
    host.opened(A)
    await scene.until(lambda: not host.outbox_bytes)


async def play_until_death(scene: SinkScene, deaths: Deaths) -> None:
    playing, dying = asyncio.create_task(play(scene)), asyncio.create_task(deaths.dead.wait())
    await asyncio.wait([playing, dying], return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, dying):
        task.cancel()
    await asyncio.gather(playing, dying, return_exceptions=True)


async def start_again(scene: SinkScene, files: FaultyFiles) -> None:
    """The next worker sends nothing before `play` connects the sink."""
    await scene.crash(files)
    scene.outsides["x"].before = lambda outgoing: (
        None
    )  # only now, since tasks of the dead worker run until they are cancelled


def lines(values: list[bytes]) -> list[bytes]:
    return [line for value in values for line in value.split()]


def first_occurrences(values: list[bytes]) -> list[bytes]:
    return [*dict.fromkeys(lines(values))]


def check(scene: SinkScene) -> None:
    x = scene.outsides["x"]
    assert first_occurrences(x.values(A)) == [b"a1", b"A1", b"a2", b"A2", b"a3", b"A3", b"a4", b"A4"]
    assert first_occurrences(x.values(B)) == [b"b1", b"b2", b"b3", b"b4"]
    assert first_occurrences(x.values(None)) == [b"n1", b"n2", b"n3", b"n4"]
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"c1", b"c2", b"c3", b"c4"]


async def places(chain: MakeChain | None) -> list[str]:
    scene = await prepared(FaultyFiles(), chain)
    deaths = Deaths(scene, 0, is_durable=True)
    await play(scene)
    found = [*deaths.places]
    await scene.close()
    check_once(scene)
    return found


def check_once(scene: SinkScene) -> None:
    values = lines(scene.outsides["x"].all_values)
    assert len(values) == len(set(values)) == 16


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("is_durable", [True, False], ids=["on disk", "not on disk"])
async def test_wherever_the_worker_dies_nothing_is_lost_or_retained_twice_or_made_a_dead_letter_twice(
    is_durable: bool, chain: str
) -> None:
    count = len(await places(CHAINS[chain]))
    assert count > 40
    died = 0
    for at in range(1, count + 1):
        files = FaultyFiles(at)
        scene = await prepared(files, CHAINS[chain])
        deaths = Deaths(scene, at, is_durable=is_durable)
        await play_until_death(scene, deaths)
        died += deaths.dead.is_set()
        await start_again(scene, files.crash())
        await play(scene)
        check(scene)
        await scene.close()
    assert died > 0.8 * count, "some steps behind the last row, and of rows that wait for others, come or do not"


@pytest.mark.slow
async def test_a_worker_that_dies_repeatedly_makes_progress() -> None:
    """Each run dies a few steps after the previous one: completed work is not repeated."""
    for seed in range(20):
        files = FaultyFiles(seed)
        scene = await prepared(files, joined if seed % 2 else None)
        for life in range(6):
            deaths = Deaths(scene, 4 + (seed + 3 * life) % 11, is_durable=bool((seed + life) % 2))
            await play_until_death(scene, deaths)
            files = files.crash()
            await start_again(scene, files)
        await play(scene)
        check(scene)
        await scene.close()
