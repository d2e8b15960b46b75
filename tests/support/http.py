"""Plain requests to a worker's HTTP port, with the tests' token."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

from tests.support.tokens import TOKEN
from tests.support.waiting import SECONDS_MAX


def get(port: int, path: str) -> Any:
    """The reply's JSON; fails unless the status is 200."""
    status, body = ask(port, "GET", path)
    assert status == http.HTTPStatus.OK, body
    return json.loads(body)


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    token: str | None = TOKEN,
) -> tuple[int, bytes]:
    """The reply's status and body. `body` is sent as JSON. `headers` replace those that are sent otherwise."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    kind = {} if body is None else {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {**kind, **authorization, **(headers or {})})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()
