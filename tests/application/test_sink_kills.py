"""Sinks that promise each value at least once, while the worker and their programs are killed again and again."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.client.segments import SegmentClient
from penstock.connectors.file import read_committed_parts
from penstock.protocol.api.deployment import ConnectorSpec, InterceptorSpec, Link, PipelineSpec, ReconnectSpec
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Taker, WsTaker
from tests.application.scene import KilledScene, killed_scene
from tests.connectors.http_serving import Asked, Says, serving
from tests.support.waiting import until

pytestmark = pytest.mark.process

QUICKLY = ReconnectSpec(first_seconds=0.05, max_seconds=0.2)
SPLIT = InterceptorSpec(type="split")
LINES = [f"line {number:04}" for number in range(240)]
KILLS = 3
SEED = 3


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def source(folder: Path) -> ConnectorSpec:
    """A few lines per epoch: kills find it in the middle."""
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    config = {"mode": "read", "path": str(folder / "in.txt"), "chunk": 64}
    return connector("lines", "file", config=config, codec="binary", interceptors_in=(SPLIT,), quota_bytes=5_000)


def to_sinks(*sinks: ConnectorSpec) -> list[ConnectorSpec | PipelineSpec | Link]:
    links = [link("pipeline/p/out", f"connector/{sink.name}/in") for sink in sinks]
    return [*sinks, pipeline("p"), link("connector/lines/out", "pipeline/p/in"), *links]


def kill_while(scene: KilledScene, found: Callable[[], dict[str, list[str]]], *restarts: Callable[[], None]) -> None:
    """The worker, and with it what `restarts` restarts, whenever each sink has more than before."""
    random = Random(SEED)
    for _ in range(KILLS):
        seen = {name: len(lines) for name, lines in found().items()}

        def is_further(seen: dict[str, int] = seen) -> bool:
            return all(len(lines) > min(seen[name] + 20, len(LINES) - 1) for name, lines in found().items())

        until(is_further, lambda: {name: len(lines) for name, lines in found().items()})
        time.sleep(random.uniform(0, 0.1))
        scene.kill()
        for restart in restarts:
            restart()


def test_every_value_reaches_programs_functions_and_segments(tmp_path: Path) -> None:
    called, printed = tmp_path / "called", tmp_path / "printed"
    (tmp_path / "mine.py").write_text(
        "def keep(name, rows):\n"
        f"    with open({str(called)!r}, 'ab') as out:\n"
        "        out.write(b''.join(row.value + b'\\n' for row in rows))\n"
    )
    with Taker(path=tmp_path / "socket") as on_socket, WsTaker() as on_web:

        def dialling(name: str, type_name: str, **config: object) -> ConnectorSpec:
            return connector(name, type_name, config=config, codec="binary", reconnect=QUICKLY)

        sinks = (
            dialling("unix", "unix-client", path=str(tmp_path / "socket"), format="lines"),
            dialling("web", "ws-client", url=f"ws://127.0.0.1:{on_web.port}/"),
            dialling("segment", "segment", segment="kept"),
            dialling("call", "callback", path=str(tmp_path / "mine.py"), function="keep"),
            dialling("print", "stdio", format="lines"),
        )
        deployment = deployed(source(tmp_path), *to_sinks(*sinks))
        with killed_scene(tmp_path / "data", deployment, printed) as scene, SegmentClient(scene.segments) as client:

            def found() -> dict[str, list[str]]:
                return {
                    "unix": on_socket.lines,
                    "web": on_web.lines,
                    "segment": [event.data.decode() for event in client.events("kept")],
                    "call": lines_of(called),
                    "print": lines_of(printed),
                }

            def restart() -> None:
                for taker in (on_socket, on_web):
                    taker.down()
                    taker.up()

            kill_while(scene, found, restart)
            until(
                lambda: all({*lines} >= {*LINES} for lines in found().values()),
                lambda: {name: sorted({*LINES} - {*lines}) for name, lines in found().items()},
            )
            arrived = found()
    assert arrived.pop("segment") == LINES, "it recognizes what is delivered again"
    for name, lines in arrived.items():
        assert [line for line in dict.fromkeys(lines) if line in LINES] == LINES, name


def test_every_value_is_sent_in_a_request_and_every_reply_is_an_event(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Says:
        return Says(200, {}, b"reply to " + asked.body + b"\n")

    with serving() as first, serving() as second:
        first.answer = second.answer = answer
        sinks = (
            connector("client", "http-client", config={"url": first.url}, codec="binary", reconnect=QUICKLY),
            connector("hooks", "webhook-client", config={"url": second.url}, codec="binary", reconnect=QUICKLY),
        )
        parts = [source(tmp_path), *to_sinks(*sinks)]
        for sink in sinks:
            kept = connector(
                f"kept-{sink.name}",
                "file",
                config={"mode": "write", "path": str(tmp_path / sink.name), "format": "raw"},
                codec="binary",
            )
            parts += [kept, pipeline(f"of-{sink.name}")]
            parts += [link(f"connector/{sink.name}/out", f"pipeline/of-{sink.name}/in")]
            parts += [link(f"pipeline/of-{sink.name}/out", f"connector/{kept.name}/in")]

        def found() -> dict[str, list[str]]:
            return {
                "client": [body.decode() for body in first.bodies],
                "hooks": [body.decode() for body in second.bodies],
                **{f"replies to {sink.name}": replies(tmp_path / sink.name) for sink in sinks},
            }

        def replies(folder: Path) -> list[str]:
            parts = read_committed_parts(folder) if folder.exists() else []
            data = b"".join(part.path.read_bytes()[: part.size] for part in parts).decode()
            return [line.removeprefix("reply to ") for line in data.splitlines()]

        with killed_scene(tmp_path / "data", deployed(*parts)) as scene:
            kill_while(scene, found)
            until(
                lambda: all({*lines} == {*LINES} for lines in found().values()),
                lambda: {name: sorted({*LINES} - {*lines}) for name, lines in found().items()},
            )
