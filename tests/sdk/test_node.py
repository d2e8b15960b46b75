"""The Node client: the tests of its codec, the conformance suite, and real workers, also over TLS."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from penstock.access.file import AccessFile, StoredGrant
from penstock.core.address import Address
from penstock.protocol.connector import stream_id_of
from penstock.testing.source_conformance import SCENARIOS, Scenario, Stage, Verdict
from tests.client.source.stored import stored_messages
from tests.sdk.node_program import FOLDER, NodeProgram, built, run
from tests.support.running_worker import RunningWorker
from tests.support.tls import CA, client_context, server_files
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("node")]

STREAMS = ["one", "two"]
COUNT = 20_000


@pytest.fixture(scope="module")
def dist() -> Path:
    return built()


@pytest.fixture
def project(dist: Path, tmp_path: Path) -> Path:
    """A folder that uses the client, as `npm install PATH` links it."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "penstock-streams").symlink_to(dist.parent)
    return tmp_path


def test_its_codec_passes_its_own_tests(dist: Path) -> None:
    assert "# fail 0" in run("node", "--test", "--test-reporter=tap", str(dist / "test" / "codec.test.js"))


def test_it_has_no_dependencies_and_the_version_of_the_package() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    assert "dependencies" not in package
    assert package["version"] == __version__


TYPED = """
import { type Message, Source } from "penstock-streams";

const messages: Message[] = [{ id: 1, payload: "a", eventTime: 1n }];
const onAck = (stream: string, id: bigint): void => console.log(stream, id);
const source = new Source("127.0.0.1:7100", { source: "numbers", onAck });
source.stream("first", (after: bigint | undefined) => (after === undefined ? messages : []));
const done: Promise<void> = source.run();
// @ts-expect-error an id is a number
source.stream("second", () => [{ id: "1", payload: "a" }]);
void done;
"""


def test_a_program_in_typescript_has_its_types(project: Path) -> None:
    (project / "typed.mts").write_text(TYPED)
    options = ["--strict", "--noEmit", "--skipLibCheck", "--module", "node16", "--target", "es2022"]
    run("node", str(FOLDER / "node_modules" / "typescript" / "bin" / "tsc"), *options, str(project / "typed.mts"))


def test_the_program_on_its_page_sends(project: Path, worker: RunningWorker) -> None:
    (program,) = re.findall(r"```js\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    (project / "page.mjs").write_text(program.replace("127.0.0.1:7100", f"127.0.0.1:{worker.ports['connector']}"))
    printed = run("node", str(project / "page.mjs"))
    assert printed.splitlines()[-1] == "first 1000n"
    assert len(stored_messages(worker.address, "numbers")[stream_id_of("first")]) == 1000


@pytest.mark.parametrize(("field", "named"), [("id", ": id"), ("eventTime", ", message 1: event time")])
def test_a_number_that_was_rounded_is_refused(field: str, named: str, project: Path, worker: RunningWorker) -> None:
    (project / "rounded.mjs").write_text(f"""
        import {{ Source }} from "penstock-streams";
        const source = new Source("127.0.0.1:{worker.ports["connector"]}", {{ source: "numbers" }});
        source.stream("first", () => [{{ id: 1, payload: "a", {field}: 2 ** 60 }}]);
        await source.run().catch((error) => console.log(error.message));
    """)
    assert f"stream first{named} 1152921504606847000 is not a safe integer" in run("node", str(project / "rounded.mjs"))


async def test_it_conforms(dist: Path) -> None:
    async def perform(scenario: Scenario, program: NodeProgram) -> Verdict:
        with Stage(Address("127.0.0.1", 0)) as stage:
            return await stage.perform(scenario, lambda address: program.send(address, "test", STREAMS, 120))

    async with NodeProgram(dist) as program:
        verdicts = await asyncio.gather(*(perform(scenario, program) for scenario in SCENARIOS))
    assert [verdict for verdict in verdicts if verdict.outcome != "passed" or verdict.findings] == []


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_nothing_is_lost_or_repeated_when_the_worker_is_killed(dist: Path, tmp_path: Path, is_tls: bool) -> None:
    is_in_the_middle = asyncio.Event()

    def on_ack(_: str, last: int) -> None:
        if 100 < last < COUNT:
            is_in_the_middle.set()

    with WorkerProcess(tmp_path / "data", *(server_files(tmp_path) if is_tls else ())) as worker:
        async with NodeProgram(dist) as program:
            address, tls = f"127.0.0.1:{worker.connector_port}", trusting() if is_tls else False
            sending = asyncio.ensure_future(program.send(address, "node", STREAMS, COUNT, on_ack, tls))
            await is_in_the_middle.wait()
            worker.kill()
            await asyncio.to_thread(worker.start)
            report = await sending
        found = stored_messages(worker.address, "node", ssl=client_context() if is_tls else None)
    assert report["error"] is None
    for name in STREAMS:
        assert report["acked"][name] == sorted(set(report["acked"][name]))
        assert report["acked"][name][-1] == COUNT
        messages = found[stream_id_of(name)]
        assert [(m.id, m.payload) for m in messages] == [
            (n, b"%s %d" % (name.encode(), n)) for n in range(1, COUNT + 1)
        ]


async def test_a_certificate_that_it_does_not_trust_ends_it_at_once(dist: Path, tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data", *server_files(tmp_path)) as worker:
        async with NodeProgram(dist) as program:
            address = f"127.0.0.1:{worker.connector_port}"
            report = await program.send(address, "node", STREAMS, 1, tls=True, retry_seconds=10**6)
    assert "RequestError" in report["error"]
    assert "certificate" in report["error"]
    assert report["acked"] == {}


async def test_a_worker_admits_it_by_a_listed_certificate_and_refuses_another(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = [*server_files(tmp_path), "--tls-client-ca", str(tmp_path / "ca.pem")]
    with WorkerProcess(tmp_path / "data", *options) as worker:
        AccessFile(worker.data).add(StoredGrant("machine", "write", certificate="machine.example.org"))
        address = f"127.0.0.1:{worker.connector_port}"

        async def reported(name: str) -> dict[str, Any]:
            return await program.send(address, "node", ["one"], 3, tls=trusting(name), retry_seconds=10**6)

        async with NodeProgram(dist) as program:
            listed, other = await reported("machine.example.org"), await reported("other.example.org")
    assert (listed["error"], listed["acked"]["one"][-1]) == (None, 3)
    assert "the certificate is not listed" in other["error"]


def trusting(name: str | None = None) -> dict[str, str]:
    """What Node needs for a worker of the tests' authority. `name`: in a certificate of its own."""
    files = {"ca": CA.cert_pem.bytes().decode()}
    if name is None:
        return files
    issued = CA.issue_cert(name)
    return files | {"cert": issued.cert_chain_pems[0].bytes().decode(), "key": issued.private_key_pem.bytes().decode()}
