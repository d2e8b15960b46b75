"""The Node client: the tests of its codec, the conformance suite, and a real worker that is killed."""

import asyncio
from pathlib import Path

import pytest

from penstock.core.address import Address
from penstock.protocol.connector import stream_id_of
from penstock.testing.source_conformance import SCENARIOS, Scenario, Stage, Verdict
from tests.client.source.stored import stored_messages
from tests.sdk.node_program import NodeProgram, built, run
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("node")]

STREAMS = ["one", "two"]
COUNT = 20_000


@pytest.fixture(scope="module")
def dist() -> Path:
    return built()


def test_its_codec_passes_its_own_tests(dist: Path) -> None:
    assert "# fail 0" in run("node", "--test", "--test-reporter=tap", str(dist / "test" / "codec.test.js"))


def test_its_types_are_built(dist: Path) -> None:
    assert "class Source" in (dist / "src" / "source.d.ts").read_text()


async def test_it_conforms(dist: Path) -> None:
    async def perform(scenario: Scenario, program: NodeProgram) -> Verdict:
        with Stage(Address("127.0.0.1", 0)) as stage:
            return await stage.perform(scenario, lambda address: program.send(address, "test", STREAMS, 120))

    async with NodeProgram(dist) as program:
        verdicts = await asyncio.gather(*(perform(scenario, program) for scenario in SCENARIOS))
    assert [verdict for verdict in verdicts if verdict.outcome != "passed" or verdict.findings] == []


async def test_nothing_is_lost_or_repeated_when_the_worker_is_killed(dist: Path, tmp_path: Path) -> None:
    is_in_the_middle = asyncio.Event()

    def on_ack(_: str, last: int) -> None:
        if 100 < last < COUNT:
            is_in_the_middle.set()

    with WorkerProcess(tmp_path / "data") as worker:
        async with NodeProgram(dist) as program:
            address = f"127.0.0.1:{worker.connector_port}"
            sending = asyncio.ensure_future(program.send(address, "node", STREAMS, COUNT, on_ack))
            await is_in_the_middle.wait()
            worker.kill()
            await asyncio.to_thread(worker.start)
            report = await sending
        found = stored_messages(worker.address, "node")
    assert report["error"] is None
    for name in STREAMS:
        assert report["acked"][name] == sorted(set(report["acked"][name]))
        assert report["acked"][name][-1] == COUNT
        messages = found[stream_id_of(name)]
        assert [(m.id, m.payload) for m in messages] == [
            (n, b"%s %d" % (name.encode(), n)) for n in range(1, COUNT + 1)
        ]
