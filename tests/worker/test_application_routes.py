"""The routes of the application, as drivers and commands see them: a real worker."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.application.deployments import FILE
from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import ConditionFailed, RequestError
from tests.application.deployments import connector, deployed, link, pipeline
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import SECONDS_MAX

SMALL = deployed(
    connector("a", "null"),
    connector("b", "null"),
    pipeline("p"),
    link("connector/a/out", "pipeline/p/in"),
    link("pipeline/p/out", "connector/b/in"),
)


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


@pytest.fixture
def application(worker: RunningWorker) -> Iterator[ApplicationClient]:
    with ApplicationClient(http(worker), 5) as made:
        yield made


def ask(worker: RunningWorker, method: str, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://{http(worker)}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_worker_begins_with_nothing_deployed(application: ApplicationClient) -> None:
    told = application.application()
    assert (told.revision, told.state) == (0, "running")
    assert not told.deployment.connectors


def test_what_is_published_is_what_is_read(application: ApplicationClient) -> None:
    assert application.apply(SMALL)["revision"] == 1
    told = application.application()
    assert (told.revision, told.state, told.deployment) == (1, "running", SMALL)


def test_the_same_again_is_the_same_revision(application: ApplicationClient) -> None:
    application.apply(SMALL)
    assert application.apply(SMALL)["revision"] == 1


def test_what_was_deployed_in_the_meantime_is_not_replaced(
    worker: RunningWorker, application: ApplicationClient
) -> None:
    application.apply(SMALL, expected_revision=0)
    other = deployed(connector("c", "null"))
    with pytest.raises(ConditionFailed, match="revision 1 is deployed, not 0"):
        application.apply(other, expected_revision=0)
    body = {"deployment": other.as_json(), "expected_revision": 0}
    assert ask(worker, "PUT", "/application", body)[0] == 409
    assert application.application().deployment == SMALL
    assert application.apply(SMALL, expected_revision=0)["revision"] == 1, "the same again: its reply was lost"
    assert application.apply(other, expected_revision=1)["revision"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"deployment": 1},
        {"deployment": {}},
        {"deployment": {"connectors": {"a": {}}, "pipelines": {}, "links": []}},
        {"deployment": {"connectors": {}, "pipelines": {"p": {"nme": "p"}}, "links": []}},
    ],
)
def test_an_invalid_deployment_is_refused(worker: RunningWorker, body: Any) -> None:
    status, told = ask(worker, "PUT", "/application", body)
    assert status == 400
    assert told["kind"] == "RequestError"


def test_a_type_that_is_not_here_is_refused_and_nothing_changes(application: ApplicationClient) -> None:
    application.apply(SMALL)
    with pytest.raises(RequestError, match="nul"):
        application.apply(deployed(connector("a", "nul")))
    assert application.application().deployment == SMALL


@pytest.mark.parametrize("stream", [-1, 2**64, 1.5, [], True])
def test_a_stream_is_a_name_or_an_id(worker: RunningWorker, stream: Any) -> None:
    assert ask(worker, "POST", "/pause", {"connector": "a", "stream": stream})[0] == 400


def test_an_unknown_connector_cannot_be_paused(application: ApplicationClient) -> None:
    with pytest.raises(RequestError, match="'nobody'"):
        application.pause("nobody")


def test_an_application_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / FILE).write_text("{")
    with running_worker(data) as worker:
        status, told = ask(worker, "PUT", "/application", {"deployment": SMALL.as_json()})
        assert (status, told["kind"]) == (503, "Damaged")
        with ApplicationClient(http(worker)) as client:
            assert any(FILE in problem for problem in client.status().problems)
