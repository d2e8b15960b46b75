"""What somebody who may deploy can do to a worker: run no code, read no file, see no secret, stop no start."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.application import validation
from penstock.application.deployments import FILE, FORMAT
from penstock.cli.app import app
from penstock.client.coordinator.client import ApplicationClient, CoordinatorClient
from penstock.connectors.permissions import Permissions
from penstock.connectors.secrets import Mask
from penstock.core.errors import RequestError
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.stand_in import standing_in
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.support.worker_nursery import Forked, nursery
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

SECRET = "correct-horse-battery-staple"
CODE = "from pathlib import Path\ndef run(name, rows): pass\nPath('{proof}').write_text('ran')\n"


class LoggedWorker(WorkerProcess):
    """Its log is beside its data."""

    def _command(self) -> Forked:
        with self.log.open("ab") as log:
            return nursery().start(self._arguments(), stderr=log.fileno())

    @property
    def log(self) -> Path:
        return self.data.parent / "worker.log"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"


class Place:
    """A worker that may use files in one directory only, and callbacks not at all."""

    def __init__(self, folder: Path) -> None:
        self.allowed, self.elsewhere = folder / "allowed", folder / "elsewhere"
        self.allowed.mkdir()
        self.elsewhere.mkdir()
        self.worker = LoggedWorker(folder / "data", "--file-root", str(self.allowed))

    @contextmanager
    def application(self) -> Iterator[ApplicationClient]:
        with ApplicationClient(self.worker.http, 10) as client:
            yield client

    def apply(self, deployment: Deployment) -> None:
        with self.application() as client:
            client.apply(deployment)

    def refusal(self, deployment: Deployment) -> RequestError:
        """Of a deployment, which changes nothing."""
        with self.application() as client:
            before = client.application()
            with pytest.raises(RequestError) as caught:
                client.apply(deployment)
            assert client.application() == before
        return caught.value

    def refusal_of_url(self, url: str) -> RequestError:
        with CoordinatorClient(self.worker.http, 10) as client, pytest.raises(RequestError) as caught:
            client.bind("any", {"sink": SinkSpec("out", url)})
        return caught.value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("deployments"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPLOYED_SECRET", SECRET)
        with made.worker:
            yield made


def sink_of(spec: ConnectorSpec) -> Deployment:
    return deployed(spec, pipeline("p"), link("pipeline/p/out", f"connector/{spec.name}/in"))


def source_of(spec: ConnectorSpec) -> Deployment:
    return deployed(spec, pipeline("p"), link(f"connector/{spec.name}/out", "pipeline/p/in"))


# From a file that a connector writes to code that the worker runs.


def test_code_that_a_connector_has_written_is_not_run(place: Place) -> None:
    written, proof, port = place.allowed / "evil.py", place.allowed / "proof", free_port()
    code = CODE.format(proof=proof).encode()
    deployment = deployed(
        connector("lines", "tcp-server", config={"port": port}, codec="binary"),
        connector("files", "file", config={"mode": "append", "path": str(written)}, codec="binary"),
        pipeline("chain"),
        link("connector/lines/out", "pipeline/chain/in"),
        link("pipeline/chain/out", "connector/files/in"),
    )
    place.apply(deployment)
    with standing_in(place.worker.http, place.worker.address, deployment):
        with socket.create_connection(("127.0.0.1", port), 10) as attacker:
            attacker.sendall(code)
        until(lambda: written.exists() and code in written.read_bytes())
    place.apply(Deployment())
    spec = connector("c", "callback", config={"path": str(written), "function": "run"}, codec="binary")
    for refusal in (place.refusal(sink_of(spec)), place.refusal_of_url(f"callback:{written}:run")):
        assert "callbacks are not allowed" in str(refusal)
        assert "--allow-callbacks" in refusal.hint
    assert not proof.exists()


def test_no_connector_writes_where_the_worker_imports_from(place: Place) -> None:
    for folder in (place.elsewhere, Path(os.__file__).parent, Path(pytest.__file__).parent.parent):
        spec = connector("c", "file", config={"mode": "append", "path": str(folder / "evil.py")}, codec="binary")
        assert "connectors may" in str(place.refusal(sink_of(spec)))


# Files.


def paths(place: Place) -> list[Path]:
    outside, data = place.elsewhere, place.worker.data
    link = place.allowed / "link"
    if not link.exists():
        link.symlink_to(place.elsewhere)
    return [outside / "x", data / "token", link / "x", place.allowed / ".." / "elsewhere" / "x", Path("/etc/passwd")]


def test_a_path_outside_the_allowed_directories_is_refused(place: Place) -> None:
    for path in paths(place):
        tls = {"port": 0, "tls": {"cert": str(path)}}
        refused = [
            sink_of(connector("c", "file", config={"mode": "write", "path": str(path)}, codec="binary")),
            sink_of(connector("c", "file", config={"mode": "append", "path": str(path)}, codec="binary")),
            source_of(connector("c", "file", config={"mode": "read", "path": str(path)}, codec="binary")),
            source_of(connector("c", "file", config={"mode": "tail", "path": f"{path}*"}, codec="binary")),
            sink_of(connector("c", "sqlite", config={"path": str(path), "table": "t"}, codec="json")),
            source_of(connector("c", "tcp-server", config=tls, codec="binary")),
            sink_of(connector("c", "tcp-client", config={"host": f"${{file:{path}}}", "port": 1}, codec="binary")),
        ]
        for deployment in refused:
            refusal = place.refusal(deployment)
            assert "may use" in str(refusal) or "may not use" in str(refusal)
            assert "--file-root" in refusal.hint or "another directory" in refusal.hint
        for url in (f"file:{path}", f"file:{path}?mode=append", f"sqlite:{path}?table=t"):
            assert str(path) in str(place.refusal_of_url(url))


def test_a_pattern_finds_nothing_behind_a_symbolic_link(place: Place) -> None:
    (place.elsewhere / "private.log").write_text(f"{SECRET}\n")
    (place.allowed / "open.log").write_text("open\n")
    paths(place)  # makes the link
    (place.allowed / "sneaky.log").symlink_to(place.elsewhere / "private.log")
    config = {"mode": "read", "path": f"{place.allowed}/**/*.log"}
    place.apply(source_of(connector("logs", "file", config=config, codec="binary")))
    with place.application() as client:
        until(lambda: [one.state for one in client.status().connectors] == ["ended"])
        assert [one.events_in for one in client.status().connectors] == [1]
        client.apply(Deployment())


def test_what_is_in_an_allowed_directory_works(place: Place) -> None:
    config = {"path": str(place.allowed / "rows.db"), "table": "t"}
    place.apply(sink_of(connector("rows", "sqlite", config=config, codec="json")))
    with place.application() as client:
        assert [one.name for one in client.status().connectors] == ["rows"]
    place.apply(Deployment())


# Secrets.


def test_a_secret_is_in_no_file_no_status_and_no_log(place: Place, tmp_path: Path) -> None:
    (place.allowed / "token").write_text(SECRET + "\n")
    url = f"http://127.0.0.1:{free_port()}/"
    header = {"Authorization": "Bearer ${DEPLOYED_SECRET}", "X-Key": f"${{file:{place.allowed}/token}}"}
    deployment = deployed(
        connector("out", "http-client", config={"url": url, "headers": header}, codec="binary"),
        connector("ws", "ws-client", config={"url": "ws" + url[4:], "headers": header}, codec="binary"),
        connector("in", "metronome", config={"interval": "10ms"}),
        pipeline("p"),
        link("connector/in/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/out/in"),
        link("pipeline/p/out", "connector/ws/in"),
    )
    place.apply(deployment)
    with place.application() as client:
        until(lambda: {one.name: one.reason for one in client.status().connectors}["ws"] != "")
        assert client.application().deployment == deployment, "the references are as they were sent"
        assert SECRET not in f"{client.application()} {client.status()}"
        client.apply(Deployment())
    for file in [*place.worker.data.rglob("*"), place.worker.log]:
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "the host of a server": (
        "tcp-server",
        {"host": "${DEPLOYED_SECRET}", "port": 0},
        "a server on host ${DEPLOYED_SECRET} is reachable",
    ),
    "a path outside": ("file", {"mode": "read", "path": "/x/${DEPLOYED_SECRET}"}, "/x/${DEPLOYED_SECRET} is outside"),
    "a segment": ("segment", {"segment": "x-${DEPLOYED_SECRET}"}, "a segment's name cannot be a reference"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_has_references_and_no_secret(place: Place, what: str) -> None:
    kind, config, told = REFUSED[what]
    refusal = place.refusal(source_of(connector("c", kind, config=config, codec="binary")))
    assert told in str(refusal)
    assert SECRET not in f"{refusal} {refusal.hint}"
    assert_no_secret_is_stored_or_logged(place)


SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "the host of a client": ("tcp-client", {"host": "${DEPLOYED_SECRET}", "port": 1}),
    "a URL's path": ("ws-client", {"url": "ws://127.0.0.1:1/${DEPLOYED_SECRET}"}),
    "a URL's host": ("ws-client", {"url": "ws://${DEPLOYED_SECRET}:1/"}),
    "a file": ("file", {"mode": "read", "path": "ROOT/${DEPLOYED_SECRET}/x"}),
    "a server's path": ("http-server", {"port": 0, "path": "/${DEPLOYED_SECRET}"}),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_status_and_the_log_have_references_and_no_secret(place: Place, what: str) -> None:
    kind, config = SHOWN[what]
    config = {key: str(value).replace("ROOT", str(place.allowed)) for key, value in config.items()}
    place.apply(source_of(connector("c", kind, config=config, codec="binary")))
    with place.application() as client:
        until(lambda: any(one.reason or one.reached_at for one in client.status().connectors))
        status = str(client.status())
        client.apply(Deployment())
    assert SECRET not in status
    assert "${DEPLOYED_SECRET}" in status or what == "a URL's path", "which is not shown at all"
    assert_no_secret_is_stored_or_logged(place)


def test_where_a_server_is_reached_is_shown_though_variables_set_it() -> None:
    mask = Mask()
    for name, value in (("PORT", "9000"), ("HOST", "127.0.0.1"), ("SECRET", "hunter2")):
        mask.add(value, f"${{{name}}}")
    assert mask.text("tcp 127.0.0.1:9000/hunter2") == "tcp 127.0.0.1:9000/${SECRET}"


def assert_no_secret_is_stored_or_logged(place: Place) -> None:
    for file in [*place.worker.data.rglob("*"), place.worker.log]:
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_a_secret_that_is_written_out_is_stored_and_not_shown(tmp_path: Path) -> None:
    """The same deployment is no change, also after a restart: what is stored has the secret."""
    header = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": "${DEPLOYED_SECRET}", "Cookie": SECRET}
    deployment = deployed(
        connector("out", "http-client", config={"url": "http://127.0.0.1:1/", "headers": header}, codec="binary"),
        connector("in", "tcp-server", config={"port": free_port(), "auth": {"bearer": [SECRET]}}, codec="binary"),
        pipeline("p"),
        link("connector/in/out", "pipeline/p/in"),
        link("pipeline/p/out", "connector/out/in"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPLOYED_SECRET", "of-the-environment")
        worker = LoggedWorker(tmp_path / "data")
        for _ in range(2):
            with worker, ApplicationClient(worker.http, 10) as client:
                answer = client.apply(deployment)
                assert answer["revision"] == 1
                again = client.apply(deployment)
                assert not any(value for key, value in again.items() if key != "revision"), again
                shown = client.application().deployment.connectors
                assert SECRET not in f"{client.application()} {client.status()}"
                assert shown["out"].config["headers"] == {
                    "Authorization": "***", "X-Api-Key": "${DEPLOYED_SECRET}", "Cookie": "***",
                }  # fmt: skip
                assert shown["in"].config["auth"] == {"bearer": ["***"]}
                until(lambda: any(one.name == "in" and one.state == "connected" for one in client.status().connectors))


def test_the_command_sends_and_shows_references_only(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYED_SECRET", SECRET)
    file = tmp_path / "app.yaml"
    file.write_text("""
connector:
  - {id: beats, type: metronome, config: {interval: "${BEATS:-1s}"}, codec: json}
  - {id: hook, type: http-client, config: {url: "http://127.0.0.1:1/", headers: {A: "${DEPLOYED_SECRET}"}}, codec: json}
binding:
  id: b
  links:
    connector/beats/out: pipeline/system::passthrough/in
    pipeline/system::passthrough/out: connector/hook/in
""")
    told = [CliRunner().invoke(app, ["check", str(file)])]
    told.append(CliRunner().invoke(app, ["apply", str(file), "--worker", place.worker.http, "--yes"]))
    assert [(one.exit_code, SECRET in one.output) for one in told] == [(0, False), (0, False)], told
    with place.application() as client:
        assert client.application().deployment.connectors["hook"].config["headers"] == {"A": "${DEPLOYED_SECRET}"}
        client.apply(Deployment())


def test_a_variable_that_the_worker_does_not_have_is_named(place: Place) -> None:
    config = {"url": "http://127.0.0.1:1/", "headers": {"A": "${NOBODY_HAS_THIS}"}}
    refusal = place.refusal(sink_of(connector("c", "http-client", config=config, codec="binary")))
    assert '"${NOBODY_HAS_THIS}" is not set in the environment of the worker' in str(refusal)
    assert "Set NOBODY_HAS_THIS where the worker is started" in refusal.hint


# Deployments that are not valid.

BAD = {
    "a link to nothing": sink_of(connector("c")).as_json() | {"connectors": {}},
    "another name inside": {
        **deployed().as_json(),
        "connectors": {"d": deployed(connector("c")).as_json()["connectors"]["c"]},
    },
    "a name that is a path": deployed(connector("../../x")).as_json(),
    "a reserved name": deployed(connector("system.x")).as_json(),
    "no segments": deployed(connector("c", segments=0)).as_json(),
    "an impossible number of segments": deployed(connector("c", segments=10**9)).as_json(),
    "an unknown acknowledgement": deployed(connector("c", ack="never")).as_json(),
    "a negative quota": deployed(connector("c", quota_bytes=-1)).as_json(),
    "an unknown codec": deployed(connector("c", codec="morse")).as_json(),
    "a schema that is not DDL": deployed(connector("c", schema="id ??")).as_json(),
    "a start at no time": source_of(connector("c")).as_json()
    | {"pipelines": {"p": {**deployed(pipeline("p", settings={"starting": "yesterday"})).as_json()["pipelines"]["p"]}}},
    "an unknown setting": deployed(pipeline("p", settings={"fast": True})).as_json(),
    "no function": deployed(connector("c")).as_json()
    | {"pipelines": {"p": {"name": "p", "id": "p", "instance": "01", "spark": "rm -rf"}}},
    "a circle": deployed(
        pipeline("p"), pipeline("q"), link("pipeline/p/out", "pipeline/q/in"), link("pipeline/q/out", "pipeline/p/in")
    ).as_json(),
    "a link between connectors": deployed(
        connector("c"), connector("d"), link("connector/c/out", "connector/d/in")
    ).as_json(),
    "an unknown port": deployed(connector("c"), pipeline("p"), link("connector/c/side", "pipeline/p/in")).as_json(),
}


class Raw(Deployment):
    """A body as somebody has written it."""

    def __init__(self, body: object) -> None:
        object.__setattr__(self, "body", body)

    def as_json(self) -> dict[str, object]:
        return object.__getattribute__(self, "body")  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", BAD)
def test_a_deployment_that_is_not_valid_is_refused_and_not_stored(place: Place, what: str) -> None:
    with place.application() as client:
        before = client.application()
        with pytest.raises(RequestError):
            client.apply(Raw(BAD[what]))
        assert client.application() == before


def test_two_servers_on_one_port_are_refused(place: Place) -> None:
    config = {"port": free_port()}
    two = deployed(
        connector("a", "tcp-server", config=config, codec="binary"),
        connector("b", "tcp-server", config=config, codec="binary"),
        pipeline("p"),
        link("connector/a/out", "pipeline/p/in"),
        link("connector/b/out", "pipeline/p/in"),
    )
    assert "connectors a and b use the same port or file" in str(place.refusal(two))


@pytest.mark.parametrize("kind", ["tcp-server", "ws-server", "http-server"])
def test_a_worker_opens_no_server_to_other_machines_unless_it_is_allowed_to(place: Place, kind: str) -> None:
    spec = connector("c", kind, config={"host": "0.0.0.0", "port": 0}, codec="binary")
    refusal = place.refusal(source_of(spec))
    assert "a server on host 0.0.0.0 is reachable from other machines" in str(refusal)
    assert "--insecure" in refusal.hint


def test_a_worker_with_insecure_opens_servers_to_other_machines(tmp_path: Path) -> None:
    with LoggedWorker(tmp_path / "data", "--insecure") as worker, ApplicationClient(worker.http, 10) as client:
        client.apply(source_of(connector("c", "tcp-server", config={"host": "0.0.0.0", "port": 0}, codec="binary")))
        until(lambda: {one.name: one.state for one in client.status().connectors} == {"c": "connected"})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedWorker]:
    worker = LoggedWorker(tmp_path_factory.mktemp("stored") / "data")
    worker.data.mkdir()
    yield worker
    worker.close()


def test_a_worker_starts_on_a_stored_deployment_that_is_not_valid(stored: LoggedWorker) -> None:
    for revision, what in enumerate(("a link to nothing", "no segments"), 1):
        kept = {"revision": revision, "name": "app.yaml", "state": "running", "deployment": BAD[what]}
        (stored.data / FILE).write_text(json.dumps({"format": FORMAT, **kept, "sinks": {}, "paused": []}))
        stored.start()
        with ApplicationClient(stored.http, 10) as client:
            status, shown = client.status(), client.application()
            assert status.application is not None
            assert (status.application.state, shown.state, shown.revision) == ("failed", "failed", revision)
            assert "not valid" in shown.reason
            assert any(shown.reason in problem for problem in status.problems)
            assert client.apply(deployed(connector("c")))["revision"] == revision + 1
            assert client.application().state == "running"
        stored.stop()
    stored.start()
    with ApplicationClient(stored.http, 10) as client:
        assert (client.application().state, client.status().problems) == ("running", [])
    stored.stop()


def test_a_worker_starts_on_a_file_that_is_not_json(stored: LoggedWorker) -> None:
    (stored.data / FILE).write_text("{")
    stored.start()
    with ApplicationClient(stored.http, 10) as client:
        shown, status = client.application(), client.status()
        assert status.application is not None
        assert (shown.state, status.application.state) == ("failed", "failed")
        assert FILE in shown.reason
    stored.stop()


INSTALLED = {
    "a command": Path(sys.executable).parent / "penstock",
    "a module": Path(pytest.__file__),
    "a module of Penstock": Path(validation.__file__),
    "the virtual environment": Path(sys.prefix) / "pyvenv.cfg",
}


@pytest.mark.parametrize("what", INSTALLED)
def test_no_connector_writes_what_the_next_start_runs(what: str, tmp_path: Path) -> None:
    permissions = Permissions.of(tmp_path / "data", (Path("/"),), callbacks=False, exposed=False)
    assert permissions.allows(tmp_path / "elsewhere")
    assert not permissions.allows(INSTALLED[what])
