"""Files are read while worker and sink are killed again and again: nothing is lost, and a file sink has all once."""

import gzip
import time
from pathlib import Path
from random import Random

import pytest

from penstock.bucket.stores import open_bucket
from penstock.connectors.file import read_committed_parts
from penstock.protocol.api.deployment import InterceptorSpec
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.peers import Taker
from tests.application.scene import dialling, killed_scene
from tests.support.waiting import until

pytestmark = pytest.mark.process

LINES = [f"line {number:05}" for number in range(20_000)]
KILLS = 4
SEED = 7


def committed(folder: Path) -> list[str]:
    parts = read_committed_parts(folder) if folder.exists() else []
    return b"".join(part.path.read_bytes()[: part.size] for part in parts).decode().splitlines()


def test_nothing_is_lost_and_what_promises_so_has_each_line_once(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    with Taker() as taker:
        deployment = deployed(
            connector(
                "lines",
                "file",
                config={"mode": "read", "path": str(tmp_path / "in.txt"), "chunk": 4096},
                codec="binary",
                interceptors_in=(InterceptorSpec(type="split"),),
                quota_bytes=100_000,
            ),
            dialling("sink", taker.port),
            connector("kept", "file", config={"mode": "write", "path": str(tmp_path / "out")}, codec="binary"),
            pipeline("p"),
            link("connector/lines/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/sink/in"),
            link("pipeline/p/out", "connector/kept/in"),
        )
        with killed_scene(tmp_path / "data", deployment) as scene:
            random = Random(SEED)
            for _ in range(KILLS):
                seen = len(taker.lines)
                until(lambda seen=seen: len(taker.lines) > seen)  # type: ignore[misc]
                time.sleep(random.uniform(0, 0.1))
                scene.kill()
                time.sleep(random.uniform(0, 0.3))
                taker.down()
                taker.up()
            until(lambda: len(set(taker.lines)) == len(LINES))
            until(lambda: len(committed(tmp_path / "out")) >= len(LINES))
            assert committed(tmp_path / "out") == LINES
            assert [*dict.fromkeys(taker.lines)] == LINES, "each for the first time in its order"


class Folder:
    """A directory that files are put into, and removed from by the worker."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = str(path)
        self._path = path

    def put(self, name: str, data: bytes) -> None:
        (self._path / name).write_bytes(data)

    def names(self) -> list[str]:
        return [path.name for path in self._path.iterdir()]


class Prefix:
    """The same in a bucket."""

    def __init__(self, url: str) -> None:
        self.path = url
        self._bucket = open_bucket(url)

    def put(self, name: str, data: bytes) -> None:
        self._bucket.create(name, [data])

    def names(self) -> list[str]:
        return [one.key for one in self._bucket.list("")]


@pytest.fixture(params=["disk", "bucket"])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Folder | Prefix:
    return Folder(tmp_path / "in") if request.param == "disk" else Prefix(request.getfixturevalue("s3_url"))


def test_files_of_a_directory_are_read_once_and_deleted_when_they_are_delivered(
    inbox: Folder | Prefix, tmp_path: Path
) -> None:
    parts = 4
    step = len(LINES) // parts
    for number in range(parts):
        lines = LINES[number * step : (number + 1) * step]
        data = "".join(f"{line}\n" for line in lines).encode()
        inbox.put(f"{number}.gz" if number % 2 else f"{number}", gzip.compress(data) if number % 2 else data)
    config = {"path": inbox.path, "chunk": 4096, "poll": "50ms", "stable_for": 0, "done": "delete"}
    deployment = deployed(
        connector(
            "lines",
            "directory",
            config=config,
            codec="binary",
            interceptors_in=(InterceptorSpec(type="split"),),
            quota_bytes=100_000,
            segments=1,  # an epoch reads one segment after the other
        ),
        connector("kept", "file", config={"mode": "write", "path": str(tmp_path / "out")}, codec="binary"),
        pipeline("p"),
        link("connector/lines/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/kept/in"),
    )
    with killed_scene(tmp_path / "data", deployment) as scene:
        random = Random(SEED)
        for _ in range(KILLS):
            seen = len(committed(tmp_path / "out"))
            until(lambda seen=seen: len(committed(tmp_path / "out")) > seen)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.1))
            scene.kill()
        until(lambda: len(committed(tmp_path / "out")) >= len(LINES))
        assert committed(tmp_path / "out") == LINES, "one file after the other, each line once"
        until(lambda: not inbox.names(), inbox.names)
