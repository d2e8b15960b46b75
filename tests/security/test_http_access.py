"""Attacks on the HTTP port: by peers without a token, by web pages, by principals beyond their role and names."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.access.file import AccessFile, StoredGrant
from tests.security.hostile.inputs import worker_routes
from tests.support.http import ask
from tests.support.open_stream import open_stream
from tests.support.tokens import TOKEN
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

OPEN = {"/live", "/ready", "/health", "/metrics"}
START = {"inputs": {"main": {"sources": ["orders"], "starting": "earliest"}}, "request": "r"}


def _routes() -> list[tuple[str, str]]:
    """Every method and path of the port."""
    return [
        (method, route.path.format(name="x", sink="x", port="err", at="0"))
        for route in worker_routes()
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


ROUTES = _routes()
CHANGING = [
    (method, path)
    for method, path in ROUTES
    if method != "GET" and path not in ("/sources/resolve", "/sources/cut", "/splits", "/places", "/sources/x/streams")
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("security") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def tokens(worker: WorkerProcess) -> dict[str, str]:
    """Of further principals, by their names."""
    access = AccessFile(worker.data)
    added = {
        "reader": StoredGrant("reader", "read"),
        "writer": StoredGrant("writer", "write"),
        "shop": StoredGrant("shop", "deploy", ["shop-"]),
    }
    found = {name: access.add(grant) for name, grant in added.items()}
    until(lambda: ask(worker.http_port, "GET", "/status", token=found["shop"])[0] == 200)
    return found


def kind_of(body: bytes) -> str:
    return str(json.loads(body)["kind"])


@pytest.mark.parametrize("token", [None, "", "a-token-that-somebody-has-guessed"])
def test_no_route_answers_without_a_valid_token(worker: WorkerProcess, token: str | None) -> None:
    for method, path in ROUTES:
        if path not in OPEN:
            status, body = ask(worker.http_port, method, path, {} if method != "GET" else None, token=token)
            assert (status, kind_of(body)) == (401, "Unauthenticated"), path


def test_code_of_an_unauthenticated_peer_never_runs_in_the_worker(worker: WorkerProcess, tmp_path: Path) -> None:
    """A file connector writes a module, and a callback runs it: both steps are refused."""
    module = tmp_path / "rogue.py"
    deployment = {"connectors": [{"id": "f", "type": "file", "options": {"path": str(module)}}]}
    chain: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", "/application", {"deployment": deployment, "name": "rogue"}),
        ("POST", "/pipelines/rogue/bind", {"sinks": {"s": {"port": "out", "url": f"file:{module}"}}}),
        ("POST", "/pipelines/rogue/bind", {"sinks": {"s": {"port": "out", "url": f"callback:{module}:run"}}}),
    ]
    for method, path, body in chain:
        for headers in ({}, {"Authorization": "Basic b3duZXI6"}, {"Authorization": "Bearer"}):
            assert ask(worker.http_port, method, path, body, headers, token=None)[0] == 401
    status = json.loads(ask(worker.http_port, "GET", "/status")[1])
    assert (status["application"]["revision"], status["sinks"]) == (0, [])
    assert not module.exists()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7102",
        "localhost.evil.example",
        "127.0.0.1.evil",
        "",
        "[::1",
        "[::1]7102",
        pytest.param("localhost:" + "9" * 5000, id="a port of 5,000 digits"),
    ],
)
def test_a_name_that_was_rebound_to_this_address_is_refused(worker: WorkerProcess, host: str) -> None:
    for path in ("/status", *OPEN):
        status, body = ask(worker.http_port, "GET", path, headers={"Host": host})
        assert status == 403, path
        assert "--http-allow-host" in json.loads(body)["hint"]


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:80", "localhost.", "[::1]:7102", "127.8.9.1:1"])
def test_loopback_names_are_accepted(worker: WorkerProcess, host: str) -> None:
    assert ask(worker.http_port, "GET", "/status", headers={"Host": host})[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:7102"])
def test_a_request_of_a_web_page_is_refused_even_with_the_token(worker: WorkerProcess, origin: str) -> None:
    for method, path in ROUTES:
        assert ask(worker.http_port, method, path, headers={"Origin": origin})[0] == 403, path


def test_probes_need_no_token_on_loopback(worker: WorkerProcess) -> None:
    for path in OPEN:
        assert ask(worker.http_port, "GET", path, token=None)[0] == 200


@pytest.mark.parametrize("name", ["reader", "writer"])
def test_a_role_that_does_not_include_it_changes_nothing(
    worker: WorkerProcess, tokens: dict[str, str], name: str
) -> None:
    own = [] if name == "reader" else ["/sources/x/watermark", "/sources/x/end"]
    for method, path in CHANGING:
        if path in own or path == "/starting":  # this one names what it is about in its body
            continue
        status, body = ask(worker.http_port, method, path, {}, token=tokens[name])
        assert (status, kind_of(body)) == (403, "Forbidden"), path
    announced = ask(worker.http_port, "POST", "/starting", {"pipelines": {"x": ["y"]}}, token=tokens[name])
    assert announced[0] == 403


def test_a_pipeline_cannot_hold_back_the_acknowledgements_of_a_source_of_somebody_else(
    worker: WorkerProcess, tokens: dict[str, str]
) -> None:
    status, body = ask(worker.http_port, "POST", "/pipelines/shop-rogue/start", START, token=tokens["shop"])
    assert status == 403
    assert "source 'orders' (its acknowledgements would wait for the pipeline)" in json.loads(body)["error"]
    own = {**START, "inputs": {"main": {"sources": ["shop-orders"], "starting": "earliest"}}}
    assert ask(worker.http_port, "POST", "/pipelines/shop-own/start", own, token=tokens["shop"])[0] == 200
    assert ask(worker.http_port, "POST", "/pipelines/other/start", own, token=tokens["shop"])[0] == 403
    forked = {"origin": "shop-own"}
    assert ask(worker.http_port, "POST", "/pipelines/other/fork", forked, token=tokens["shop"])[0] == 403
    assert ask(worker.http_port, "POST", "/pipelines/shop-theirs/start", START)[0] == 200
    theirs = {"origin": "shop-theirs"}
    status, body = ask(worker.http_port, "POST", "/pipelines/shop-rogue/fork", theirs, token=tokens["shop"])
    assert (status, "source 'orders'" in json.loads(body)["error"]) == (403, True)
    attach = {"generation": 1, "input": "main", "load": "l", "sources": ["orders"]}
    assert ask(worker.http_port, "POST", "/pipelines/shop-own/attach", attach, token=tokens["shop"])[0] == 403


def test_a_principal_with_prefixes_sees_and_reads_its_own_part_alone(
    worker: WorkerProcess, tokens: dict[str, str]
) -> None:
    for name, source in (("shop-seen", "shop-orders"), ("unseen", "orders")):
        started = {**START, "inputs": {"main": {"sources": [source], "starting": "earliest"}}}
        assert ask(worker.http_port, "POST", f"/pipelines/{name}/start", started)[0] == 200
    _, everything = ask(worker.http_port, "GET", "/status")
    _, seen = ask(worker.http_port, "GET", "/status", token=tokens["shop"])
    assert b"unseen" in everything
    assert b"unseen" not in seen
    assert b"shop-seen" in seen
    whole, own = json.loads(everything), json.loads(seen)
    assert whole["pid"] > 0
    assert (own["pid"], own["data"], own["uptime_seconds"]) == (0, "", 0)
    assert str(worker.data).encode() not in seen
    for part in ("store", "loop", "segment_server", "session_totals", "source_totals"):
        assert not any(value for key, value in own[part].items() if key != "count"), part
    assert whole["store"]["segments"] > 0
    assert own["source_totals"]["count"] == len(own["sources"])
    assert own["ports"] == whole["ports"], "clients find the other ports here"
    for path in ("/application", "/pipelines/unseen/epochs", "/pipelines/unseen/batch"):
        assert ask(worker.http_port, "GET", path, token=tokens["shop"])[0] == 403, path
    resolve = {"sources": ["orders"], "position": "earliest"}
    assert ask(worker.http_port, "POST", "/sources/resolve", resolve, token=tokens["shop"])[0] == 403
    splits = {"ranges": [["connector/orders/0", 0, 1]], "parts": 1}
    assert ask(worker.http_port, "POST", "/splits", splits, token=tokens["shop"])[0] == 403
    _, segments = ask(worker.http_port, "GET", "/segments", token=tokens["shop"])
    assert all("shop-" in one["name"] for one in json.loads(segments)["segments"])
    for prefix in ("", "co", "connector/", "pipeline/"):
        _, page = ask(worker.http_port, "GET", f"/segments?prefix={prefix}", token=tokens["shop"])
        assert json.loads(page)["after"] == "" or "shop-" in json.loads(page)["after"]


def test_a_pipeline_that_connects_tenants_shows_neither_the_names_of_the_other(
    worker: WorkerProcess, tokens: dict[str, str]
) -> None:
    def owner(path: str, body: dict[str, Any]) -> Any:
        status, answer = ask(worker.http_port, "POST", f"/pipelines/{path}", body)
        assert status == 200, answer
        return json.loads(answer)

    both = {"inputs": {"main": {"sources": ["shop-orders", "bank-orders"], "starting": "earliest"}}, "request": "r"}
    with open_stream(worker.connector_port, "bank-orders", "payroll") as stream:
        stream.send(1, 1_000)
        generation = owner("shop-both/start", both)["generation"]
        start = owner("shop-both/initial", {"generation": generation, "input": "main"})
        owner("shop-both/cut", {"generation": generation, "input": "main", "start": start, "wait_ms": 20_000})
        for path in ("/status", "/pipelines", "/pipelines/shop-both/batch"):
            _, everything = ask(worker.http_port, "GET", path)
            _, seen = ask(worker.http_port, "GET", path, token=tokens["shop"])
            assert b"bank-orders" in everything, path
            assert b"bank-orders" not in seen, path
            assert b"payroll" not in seen, path
            assert path.endswith("batch") or b"payroll" in everything, path
        _, seen = ask(worker.http_port, "GET", "/pipelines", token=tokens["shop"])
        (shown,) = [one for one in json.loads(seen)["pipelines"] if one["name"] == "shop-both"]
        assert shown["inputs"] == {"main": ["shop-orders"]}


def test_a_pipeline_is_announced_for_the_principal_s_own_sources_alone(
    worker: WorkerProcess, tokens: dict[str, str]
) -> None:
    """Programs that send to a source wait for the pipelines that are announced for it."""
    announced = {"pipelines": {"shop-x": ["orders"]}}
    assert ask(worker.http_port, "POST", "/starting", announced, token=tokens["shop"])[0] == 403


def test_a_revoked_token_is_refused_without_a_restart(worker: WorkerProcess) -> None:
    access = AccessFile(worker.data)
    token = access.add(StoredGrant("passing", "read"))
    until(lambda: ask(worker.http_port, "GET", "/status", token=token)[0] == 200)
    access.revoke("passing")
    until(lambda: ask(worker.http_port, "GET", "/status", token=token)[0] == 401)


def test_beyond_loopback_probes_need_a_token_and_clients_a_name_of_the_worker(tmp_path: Path) -> None:
    options = ("--http-host", "0.0.0.0", "--insecure", "--http-allow-host", "worker.example")
    with WorkerProcess(tmp_path / "data", *options) as worker:
        for path in OPEN:
            assert ask(worker.http_port, "GET", path, token=None)[0] == 401
            assert ask(worker.http_port, "GET", path)[0] == 200
        assert ask(worker.http_port, "GET", "/status", headers={"Host": "Worker.Example:7102"})[0] == 200
        assert ask(worker.http_port, "GET", "/status", headers={"Host": "evil.example"})[0] == 403


@pytest.mark.parametrize(
    "options",
    [
        ("--host", "0.0.0.0"),
        ("--http-host", "0.0.0.0"),
        ("--http-host", "::"),
        ("--host", "0.0.0.0", "--tls-cert", "c", "--tls-key", "k"),
        ("--host", "0.0.0.0", "--cookie", "secret"),
    ],
)
def test_other_machines_are_kept_out_unless_tls_and_authentication_or_insecure_are_asked_for(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(tmp_path / "data"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 1
    assert "--insecure" in ended.stderr
    assert not (tmp_path / "data").exists()


def test_the_data_directory_and_the_token_are_the_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WORKER_TOKEN_FILE")
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with WorkerProcess(data) as worker:
        assert data.stat().st_mode & 0o777 == 0o700
        assert (data / "token").stat().st_mode & 0o777 == 0o600
        token = (data / "token").read_text().strip()
        assert token != TOKEN
        assert ask(worker.http_port, "GET", "/status", token=token)[0] == 200
        assert ask(worker.http_port, "GET", "/status", token=TOKEN)[0] == 401
        command = [sys.executable, "-m", "penstock", "status", "--data", str(data)]
        assert subprocess.run(command, capture_output=True, check=False, timeout=100).returncode == 0
