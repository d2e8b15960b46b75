"""Pipelines that are no longer in the application's file: dropped after a confirmation or with --prune, else kept."""

import os
import pty
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import former_pipelines
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient, InputSpec, SinkSpec
from tests.application.deployments import deployed
from tests.application.peers import Sender, Taker
from tests.application.scene import Scene, scene_of
from tests.application.stand_in import StandIn
from tests.support.ports import free_port
from tests.support.waiting import until

YAML = """
connector:
  - {{id: source, type: tcp-server, config: {{port: {port}}}, codec: binary, interceptors: {{in: [{{type: split}}]}}}}
  - id: sink
    type: tcp-client
    config: {{port: {sink}}}
    codec: binary
    reconnect: {{first: 50ms, max: 200ms}}
    interceptors: {{out: [{{type: join, config: {{max_elements: 1}}}}]}}
pipeline:
{pipelines}
binding:
  id: main
  links:
{links}
"""


@dataclass
class Bench:
    scene: Scene
    folder: Path
    port: int
    taker: Taker

    def apply(self, *pipelines: str, options: tuple[str, ...] = ()) -> str:
        """The application has these pipelines, each between the source and the sink."""
        file = self.folder / "app.yaml"
        specs = "\n".join(f"  - {{id: {name}, spark: 'system::passthrough'}}" for name in pipelines)
        into = ", ".join(f"pipeline/{name}/in" for name in pipelines)
        links = [f"    connector/source/out: [{into}]"]
        links += [f"    pipeline/{name}/out: connector/sink/in" for name in pipelines]
        file.write_text(YAML.format(port=self.port, sink=self.taker.port, pipelines=specs, links="\n".join(links)))
        return self.scene.command("apply", str(file), *options)

    def send(self, *lines: str) -> None:
        with Sender(self.port) as sender:
            for line in lines:
                sender.send(line)

    def names(self) -> list[str]:
        with CoordinatorClient(self.scene.http) as client:
            return sorted(one.name for one in client.pipelines())

    def lag(self, name: str) -> int:
        with CoordinatorClient(self.scene.http) as client:
            return next(one.lag_bytes for one in client.pipelines() if one.name == name)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Taker() as taker, scene_of(tmp_path / "data", deployed()) as scene:
        yield Bench(scene, tmp_path, free_port(), taker)


def test_without_a_terminal_it_is_kept_with_a_warning_and_status_names_it(bench: Bench) -> None:
    bench.apply("old", "new")
    bench.scene.until_listens("source")
    bench.send("one", "two")
    until(lambda: bench.lag("old") > 0)
    said = bench.apply("new")
    assert "pipelines to stop: old" in said
    assert "kept old, which has 0 undelivered epochs and blocks" in said
    assert "of source. To drop it: penstock pipeline drop old" in said
    assert bench.names() == ["new", "old"]
    (sentence,) = [str(one) for one in bench.scene.application.status().blockages if one.pipeline == "old"]
    assert sentence.startswith("pipeline old is no longer in the application, and blocks ")
    assert sentence.endswith("of source. Drop it (penstock pipeline drop old), or deploy it again.")
    assert "pipelines new, old" not in (shown := bench.scene.command("status"))
    assert "pipeline old is no longer in the application" in " ".join(shown.split())
    bench.scene.command("pipeline", "drop", "old", "--yes")
    assert "kept" not in bench.apply("new")
    assert not any("no longer" in one.text for one in bench.scene.application.status().blockages)


def test_with_prune_it_is_dropped_and_what_others_have_started_is_not(bench: Bench) -> None:
    bench.apply("old", "new")
    with CoordinatorClient(bench.scene.http) as client:
        client.start("by-hand", {"in": InputSpec(["source"])}, ["out"])
    said = bench.apply("new", options=("--prune",))
    assert said.endswith("dropped old\n")
    assert bench.names() == ["by-hand", "new"]
    with CoordinatorClient(bench.scene.http) as client:  # a later one of that name is not the application's
        client.start("old", {"in": InputSpec(["source"])}, ["out"])
    assert "old" not in bench.apply("new", options=("--prune",))
    assert bench.names() == ["by-hand", "new", "old"]


def test_on_a_terminal_it_says_what_it_waits_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.apply("old", "new")
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = bench.apply("new", options=("--prune",))
    assert "waiting until old has stopped …" in said
    assert "waiting for the delivery of old …" in said


def test_one_that_runs_elsewhere_by_now_is_left_alone(bench: Bench) -> None:
    bench.apply("old", "new")
    bench.apply("new")
    with CoordinatorClient(bench.scene.http) as client:
        started = client.start("old", {"in": InputSpec(["source"])}, ["out"])
        client.heartbeat("old", started.generation)
        assert "old" not in bench.apply("new", options=("--prune",))
        client.heartbeat("old", started.generation, stopped=True)
    assert bench.apply("new", options=("--prune",)).endswith("dropped old\n")


def test_prune_keeps_what_is_not_delivered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_pipelines, "DELIVERY_SECONDS_MAX", 0.0)
    bench.apply("old", "new")
    bench.scene.until_listens("source", "sink")
    in_the_way = bench.folder / "files"
    in_the_way.write_text("not a directory")
    deployment = bench.scene.application.application().deployment
    with CoordinatorClient(bench.scene.http) as client:
        client.bind("old", {"files": SinkSpec("out", f"file:{in_the_way}/old")})
        running = StandIn(bench.scene.http, bench.scene.segments, "old", deployment)
        try:
            bench.send("one")
            until(lambda: len(client.epochs("old")) == 1)
        finally:
            running.stop()
        said = bench.apply("new", options=("--prune",))
        assert "kept old: 1 of its epochs are not delivered. To drop it: penstock pipeline drop old" in said
        in_the_way.unlink()
        client.retry("old")
        until(lambda: not client.epochs("old"))
    assert bench.apply("new", options=("--prune",)).endswith("dropped old\n")
    assert "one" in "".join(part.read_text() for part in (in_the_way / "old").glob("part-*"))


@pytest.mark.parametrize(("answer", "left"), [("y", ["new"]), ("n", ["new", "old"])])
def test_on_a_terminal_it_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: str, left: list[str]
) -> None:
    bench.apply("old", "new")
    file = bench.folder / "app.yaml"
    bench.apply("old", "new")
    text = file.read_text().replace("  - {id: old, spark: 'system::passthrough'}\n", "")
    file.write_text(text.replace("pipeline/old/in, ", "").replace("    pipeline/old/out: connector/sink/in\n", ""))
    terminal, end = pty.openpty()
    with os.fdopen(end) as stdin:
        os.write(terminal, f"{answer}\n".encode())
        monkeypatch.setattr("sys.stdin", stdin)
        app(["apply", str(file), "--worker", bench.scene.http], standalone_mode=False)
    os.close(terminal)
    said = capfd.readouterr()
    assert "drop pipeline old? It has 0 undelivered epochs and blocks 0 B of source" in said.err
    assert ("dropped old" in said.out, "penstock pipeline drop old" in said.out) == (answer == "y", answer == "n")
    assert bench.names() == left


def test_the_option_is_known_to_run() -> None:
    assert "--prune" in CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
