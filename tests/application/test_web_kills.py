"""Webhooks, telemetry, event streams and mail while the worker is killed again and again, with real peers: what was
answered is never lost, and what promises so comes once.
"""

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from penstock.connectors.file import read_committed_parts
from penstock.connectors.otlp.records import SIGNALS
from penstock.connectors.webhook.signatures import Signature, sign, verify
from penstock.protocol.api.deployment import (
    ConnectorSpec,
    Deployment,
    InterceptorSpec,
    Link,
    PipelineSpec,
    ReconnectSpec,
)
from tests.application.deployments import connector, deployed, link, pipeline
from tests.application.scene import KilledScene, killed_scene
from tests.connectors.http_serving import serving
from tests.connectors.mail_server import MailServer
from tests.connectors.sse_peers import SseProcess
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.process

QUICKLY = ReconnectSpec(first_seconds=0.05, max_seconds=0.2)
SPLIT = InterceptorSpec(type="split")
KILLS = 3
SEED = 11
SIGNATURE = Signature(secrets=(base64.b64encode(b"between you and me").decode(),))
SIGNED = {"style": "standard", "secrets": [*SIGNATURE.secrets]}


def committed(folder: Path) -> list[str]:
    parts = read_committed_parts(folder) if folder.exists() else []
    return b"".join(part.path.read_bytes()[: part.size] for part in parts).decode().splitlines()


def to_file(folder: Path, *sources: Any) -> Deployment:
    """What the sources send is written to a file, once."""
    links = [link(f"connector/{source.name}/out", "pipeline/p/in") for source in sources]
    kept = connector("kept", "file", config={"mode": "write", "path": str(folder)}, codec="binary")
    return deployed(*sources, kept, pipeline("p"), *links, link("pipeline/p/out", "connector/kept/in"))


def kill_while(scene: KilledScene, progress: Callable[[], int]) -> None:
    random = Random(SEED)
    for _ in range(KILLS):
        seen = progress()
        until(lambda seen=seen: progress() > seen + 20)  # type: ignore[misc]
        time.sleep(random.uniform(0, 0.1))
        scene.kill()


class Sender(threading.Thread):
    """Sends one request after the other, each until it is answered 2xx, as senders of webhooks and exporters do."""

    def __init__(self, url: str, make: Callable[[int], tuple[bytes, dict[str, str]]]) -> None:
        super().__init__()
        self._url = url
        self._make = make
        self.answered = 0
        self.ends = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self.ends.is_set():
                body, headers = self._make(self.answered)
                with suppress(httpx.HTTPError):
                    if client.post(self._url, content=body, headers=headers).is_success:
                        self.answered += 1
                        continue
                time.sleep(0.02)


@contextmanager
def running(*senders: Sender) -> Iterator[None]:
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for sender in senders:
            sender.ends.set()
            sender.join()


def webhook(number: int) -> tuple[bytes, dict[str, str]]:
    body = b"webhook %d" % number
    return body, sign(SIGNATURE, f"delivery-{number}", body, time.time())


def telemetry(number: int) -> tuple[bytes, dict[str, str]]:
    request = SIGNALS[0].request()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = f"log {number}"
    return request.SerializeToString(), {"content-type": "application/x-protobuf"}


def request(number: int) -> tuple[bytes, dict[str, str]]:
    return b"request %d" % number, {}


def test_no_request_webhook_or_telemetry_that_was_answered_is_lost(tmp_path: Path) -> None:
    ports = free_port(), free_port(), free_port()
    hooks = connector(
        "hooks", "webhook-server", config={"port": ports[0], "signature": SIGNED}, codec="binary", reconnect=QUICKLY
    )
    logs = connector(
        "logs",
        "otlp",
        config={"port": ports[1], "grpc_port": None},
        codec="binary",
        ack="durable",
        reconnect=QUICKLY,
    )
    requests = connector(
        "requests", "http-server", config={"port": ports[2]}, codec="binary", ack="durable", reconnect=QUICKLY
    )
    senders = [
        Sender(f"http://127.0.0.1:{ports[0]}/", webhook),
        Sender(f"http://127.0.0.1:{ports[1]}/v1/logs", telemetry),
        Sender(f"http://127.0.0.1:{ports[2]}/", request),
    ]
    with killed_scene(tmp_path / "data", to_file(tmp_path / "out", hooks, logs, requests)) as scene:
        with running(*senders):
            kill_while(scene, lambda: min(sender.answered for sender in senders))
        names = ("webhook", "log", "request")
        expected = {f"{name} {n}" for name, sender in zip(names, senders, strict=True) for n in range(sender.answered)}

        def stored() -> set[str]:
            lines = committed(tmp_path / "out")
            return {json.loads(line)["body"] if line.startswith("{") else line for line in lines}

        until(lambda: stored() >= expected, lambda: sorted(expected - stored()))


def test_events_of_a_stream_with_numbers_come_once_and_in_order(tmp_path: Path) -> None:
    with SseProcess() as server:
        reader = connector(
            "reader", "sse-client", config={"url": server.url, "ids": "number"}, codec="binary", reconnect=QUICKLY
        )
        with killed_scene(tmp_path / "data", to_file(tmp_path / "out", reader)) as scene:
            for _ in range(KILLS):
                for kill in (scene.kill, server.kill):
                    seen = len(committed(tmp_path / "out"))
                    until(lambda seen=seen: len(committed(tmp_path / "out")) > seen + 20)  # type: ignore[misc]
                    kill()
            count = server.count
            until(lambda: len(committed(tmp_path / "out")) >= count)
            found = committed(tmp_path / "out")
            assert found == [f"event {number}" for number in range(len(found))]


def until_equal(found: Callable[[], set[str]], wanted: set[str]) -> None:
    def difference() -> str:
        return f"missing: {sorted(wanted - found())}, not wanted: {sorted(found() - wanted)}"

    until(lambda: found() == wanted, difference)


def test_every_event_leaves_as_a_webhook_and_as_mail_and_repetitions_can_be_recognized(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(300)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    with serving() as receiver, MailServer() as mail:
        mailed = {"host": "127.0.0.1", "port": mail.port, "encryption": "off", "sender": "a@b.org", "to": ["c@d.org"]}
        parts: list[ConnectorSpec | PipelineSpec | Link] = [
            connector(
                "lines",
                "file",
                config={"mode": "read", "path": str(tmp_path / "in.txt"), "chunk": 64},
                codec="binary",
                interceptors_in=(SPLIT,),
                quota_bytes=5_000,
            ),
            connector("hooks", "webhook-client", config={"url": receiver.url, "signature": SIGNED}, codec="binary"),
            connector("mail", "email", config=mailed, codec="binary"),
            pipeline("p"),
            link("connector/lines/out", "pipeline/p/in"),
            link("pipeline/p/out", "connector/hooks/in"),
            link("pipeline/p/out", "connector/mail/in"),
        ]
        with killed_scene(tmp_path / "data", deployed(*parts)) as scene:
            kill_while(scene, lambda: min(len(receiver.asked), len(mail.messages)))
            until_equal(lambda: {one.body.decode() for one in receiver.asked}, {*lines})
            until_equal(lambda: {message["Subject"] for message in mail.messages}, {*lines})
    keys = {asked.headers["idempotency-key"]: asked.body.decode() for asked in receiver.asked}
    assert Counter(keys.values()) == Counter(lines), "a repetition has the key of the first"
    for asked in receiver.asked[:5]:
        verify(SIGNATURE, asked.headers, asked.body, time.time())
    ids = {message["Message-ID"]: message["Subject"] for message in mail.messages}
    assert Counter(ids.values()) == Counter(lines)
