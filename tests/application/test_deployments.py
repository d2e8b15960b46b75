"""What a worker remembers of its application."""

import asyncio
import stat
from pathlib import Path

import pytest

from penstock.application.deployments import FILE, Application, DeploymentFile, Phase
from penstock.core.errors import Damaged
from penstock.protocol.api.deployment import ConnectorSpec, Deployment, End, Link, PipelineSpec

DEPLOYMENT = Deployment(
    connectors={"in.eu": ConnectorSpec(name="in.eu", id="in", instance="eu", type="tcp-server", config={"port": 1})},
    pipelines={"p": PipelineSpec(name="p", id="p", instance="01", spark="system::passthrough")},
    links=(Link(End("connector", "in.eu", "out"), End("pipeline", "p", "in"), "x"),),
)
APPLICATION = Application(
    revision=7, phase=Phase.DRAINING, deployment=DEPLOYMENT, paused=frozenset({("in.eu", None), ("in.eu", 2**63)})
)


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    asyncio.run(DeploymentFile(tmp_path).save(APPLICATION))
    assert DeploymentFile(tmp_path).load() == APPLICATION


def test_without_a_file_nothing_is_deployed(tmp_path: Path) -> None:
    assert not DeploymentFile(tmp_path).load().is_deployed


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    asyncio.run(DeploymentFile(tmp_path).save(APPLICATION))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_crash_while_it_is_written_leaves_what_was_there(tmp_path: Path) -> None:
    asyncio.run(DeploymentFile(tmp_path).save(APPLICATION))
    (tmp_path / FILE).with_suffix(".tmp").write_text('{"revision": 8, "sta')
    assert DeploymentFile(tmp_path).load() == APPLICATION


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"revision": 1, "state": "happy", "deployment": {}, "paused": []}'])
def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(Damaged, match=r"application\.json"):
        DeploymentFile(tmp_path).load()


def test_each_pause_ends_by_itself() -> None:
    paused = Application(paused=frozenset({("a", None), ("a", 1), ("b", 1)}))
    assert paused.with_pause(("a", None), is_paused=False).paused == {("a", 1), ("b", 1)}
    assert paused.with_pause(("a", 1), is_paused=False).paused == {("a", None), ("b", 1)}


def test_what_is_not_a_file_is_damage_too(tmp_path: Path) -> None:
    (tmp_path / "application.json").mkdir()
    with pytest.raises(Damaged, match="cannot be read"):
        DeploymentFile(tmp_path).load()
