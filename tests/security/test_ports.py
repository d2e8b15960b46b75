"""The segment port and the connector port, attacked by clients without a token, with another tenant's, or with less
than they need. All share one worker, except those that need TLS or other settings.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast
from uuid import uuid4

import pytest

from penstock.access.file import AccessFile, StoredGrant
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import QUOTA, Appender, AsyncSegmentClient, AttributeUpdate, SegmentClient
from penstock.client.source import Refused, Source
from penstock.connectors.api import Host, SegmentPort
from penstock.connectors.segment import Segment, SegmentOptions
from penstock.core.errors import (
    Damaged,
    Fenced,
    Forbidden,
    LimitExceeded,
    NoSuchSegment,
    PipelineError,
    QuotaReached,
    RequestError,
    SegmentExists,
    Unauthenticated,
)
from penstock.protocol import connector as programs
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    AppendSetup,
    AuthTokenCheckFailed,
    CreateSegment,
    Decoder,
    Dialect,
    GetSegmentInfo,
    Hello,
    Incoming,
    Message,
    ReadSegment,
    Role,
    SegmentCreated,
    SetupAppend,
)
from penstock.store.store import SegmentStore
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tls import client_context, server_context
from tests.support.tokens import TOKEN, TOKEN_FILE
from tests.support.waiting import until

COOKIE = b"Dragons-Love-Tacos"
QUOTA_BYTES = 4096
GRANTS = {
    "reader": StoredGrant("reader", "read"),
    "writer": StoredGrant("writer", "write"),
    "tenant": StoredGrant("tenant", "write", ["demo"]),
    "saver": StoredGrant("saver", "write", ["saver"], quota_bytes=QUOTA_BYTES),
    "lodger": StoredGrant("lodger", "write", ["lodger"], quota_bytes=QUOTA_BYTES),
    "deployer": StoredGrant("deployer", "deploy", ["demo"]),
    "neighbour": StoredGrant("neighbour", "deploy", ["other"]),
    "admin of demo": StoredGrant("admin of demo", "admin", ["demo"]),
}


def access_of(data: Path) -> AccessFile:
    data.mkdir(mode=0o700)
    (data / "token").write_text(TOKEN)
    return AccessFile(data)


@dataclass
class Attacked:
    worker: RunningWorker
    access: AccessFile
    tokens: dict[str, str]

    def client(self, principal: str = "", *, token: str = "") -> SegmentClient:
        """Retries for a minute what it retries at all."""
        return SegmentClient(self.worker.address, token=token or self.tokens.get(principal, ""), timeout_seconds=30)

    def owner(self) -> SegmentClient:
        return self.client(token=TOKEN)

    def added(self, grant: StoredGrant) -> str:
        return self.access.add(grant)

    @property
    def connector_port(self) -> int:
        return self.worker.ports["connector"]

    def source(self, name: str, cookie: bytes = b"") -> Source:
        return Source(f"127.0.0.1:{self.connector_port}", source=name, cookie=cookie, retry_seconds=30)

    def in_store(self, work: Callable[[SegmentStore], object]) -> None:
        """The store belongs to the worker's thread."""

        async def run() -> None:
            work(self.worker._worker._store)

        asyncio.run_coroutine_threadsafe(run(), self.worker._loop).result(30)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    data = tmp_path_factory.mktemp("ports") / "data"
    access = access_of(data)
    tokens = {name: access.add(grant) for name, grant in GRANTS.items()}
    with running_worker(data, access=AccessFile(data), cookie=COOKIE) as worker:
        yield Attacked(worker, access, tokens)


class Peer:
    """A client of the segment port, made of a socket and the codec."""

    def __init__(self, attacked: Attacked, dialect: Dialect = VERSIONED) -> None:
        self.socket = socket.create_connection(("127.0.0.1", attacked.worker.ports["segment"]), 30)
        self._dialect = dialect
        self._decoder = Decoder(Role.CLIENT)
        self._received: list[Incoming] = []
        if dialect is VERSIONED:
            assert isinstance(self.ask(Hello(17, 5)), Hello)

    def ask(self, request: Message) -> Incoming:
        self.socket.sendall(self._dialect.encode(request))
        return self.reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def reply(self) -> Incoming:
        while not self._received:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._received.extend(self._decoder.feed(data))
        return self._received.pop(0)


# Without a token.

REQUESTS: dict[str, Callable[[SegmentClient, str], object]] = {
    "info": lambda client, name: client.info(name),
    "read": lambda client, name: client.read(name, 0, 10),
    "attribute": lambda client, name: client.attribute(name, bytes(16)),
    "create": lambda client, name: client.create(f"{name}-new"),
    "append": lambda client, name: client.appender(name).append(b"1"),
    "seal": lambda client, name: client.seal(name),
    "truncate": lambda client, name: client.truncate(name, 1),
    "delete": lambda client, name: client.delete(name),
    "merge into it": lambda client, name: client.merge(name, "demo/merged"),
    "merge it away": lambda client, name: client.merge("demo/merged", name),
    "set attribute": lambda client, name: client.set_attribute(name, bytes(16), 1, expected=None),
}
READS = ("info", "read", "attribute")


@pytest.fixture
def segment(attacked: Attacked) -> str:
    """One of the tenant's, with a byte in it."""
    name = f"demo/{uuid4()}"
    with attacked.owner() as client:
        client.create("demo/merged", exist_ok=True)
        with client.appender(name, create=True) as appender:
            appender.append(b"1")
    return name


@pytest.mark.parametrize("token", ["", "wrong", "x" * 60_000, TOKEN + "x", TOKEN[:-1], "\N{SNOWMAN}"])
def test_without_a_valid_token_nothing_is_answered(attacked: Attacked, segment: str, token: str) -> None:
    with attacked.client(token=token) as client:
        for request in REQUESTS.values():
            with pytest.raises(Unauthenticated) as raised:
                request(client, segment)
            assert "PENSTOCK_TOKEN_FILE" in raised.value.hint
            assert token == "" or token not in str(raised.value)
        with pytest.raises(Unauthenticated):
            client.info("no such segment")
    with attacked.owner() as client:
        assert [event.data for event in client.events(segment)] == [b"1"]


async def test_the_asyncio_client_sends_its_token_too(attacked: Attacked, segment: str) -> None:
    async with AsyncSegmentClient(attacked.worker.address, token="") as client:
        with pytest.raises(Unauthenticated):
            await client.appender(segment)
    async with AsyncSegmentClient(attacked.worker.address, token=attacked.tokens["writer"]) as client:
        async with await client.appender(segment) as appender:
            await appender.append(b"2")
        assert [event.data async for event in client.events(segment)] == [b"1", b"2"]


def test_clients_read_the_file_of_the_environment(
    attacked: Attacked, segment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(file))
    file.write_text(f"{attacked.tokens['reader']}\n")
    with SegmentClient(attacked.worker.address) as client:
        assert client.info(segment).length > 0
        with pytest.raises(Forbidden):
            client.delete(segment)
    file.write_text("wrong")
    with SegmentClient(attacked.worker.address) as client, pytest.raises(Unauthenticated):
        client.info(segment)


def test_a_token_is_in_no_text(attacked: Attacked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = attacked.tokens["reader"]
    with attacked.client("reader") as client:
        with pytest.raises(Forbidden) as raised:
            client.create("demo/refused")
        assert client._connection is not None
        texts = [repr(client), repr(client._connection), repr(client._connection.session), str(raised.value)]
    texts += [repr(ReadSegment("s", 0, 1, token)), repr(SetupAppend(bytes(16), "s", token))]
    texts += [repr(programs.Hello("0.0.1", token.encode(), "p", "s"))]
    assert not any(token in text for text in [*texts, caplog.text])
    assert "'reader' has the role read" in caplog.text


# Roles and names.


def test_a_reader_changes_nothing(attacked: Attacked, segment: str) -> None:
    with attacked.client("reader") as client:
        for name, request in REQUESTS.items():
            if name in READS:
                request(client, segment)
            else:
                with pytest.raises(Forbidden, match="'reader' has the role read; this needs write"):
                    request(client, segment)


def test_a_prefix_limits_every_request(attacked: Attacked, segment: str) -> None:
    with attacked.client("neighbour") as client:
        for request in REQUESTS.values():
            with pytest.raises(Forbidden, match="names that start with other"):
                request(client, segment)
        with pytest.raises(Forbidden):
            client.info("no such segment")
    with attacked.client("tenant") as client:
        for allowed in ("info", "read", "set attribute", "truncate", "seal", "delete"):
            REQUESTS[allowed](client, segment)


OWNED = ("connector/demo/0", "connector/demo/streams", "pipeline/demo/out", "coordinator/ledger")


def test_nobody_changes_what_the_system_owns(attacked: Attacked) -> None:
    """Whoever may read it, an administrator too."""

    def make(store: SegmentStore) -> None:
        for name in OWNED:
            if not store.exists(name):
                store.create(name)

    attacked.in_store(make)
    everybody = [*attacked.tokens.values(), TOKEN, ""]
    for name in OWNED:
        for token in everybody:
            with attacked.client(token=token) as client:
                for request in REQUESTS.keys() - set(READS):
                    with pytest.raises(RequestError):
                        REQUESTS[request](client, name)
    attacked.in_store(lambda store: [store.info(name) for name in OWNED])


@pytest.mark.parametrize(
    ("segment", "readers"),
    [
        ("connector/demo/0", {"reader", "writer", "tenant", "deployer", "admin of demo"}),
        ("pipeline/demo/out", {"reader", "writer", "tenant", "deployer", "admin of demo"}),
        ("coordinator/ledger", set()),
    ],
)
def test_system_segments_are_read_by_whoever_may_read_their_source_or_pipeline(
    attacked: Attacked, segment: str, readers: set[str]
) -> None:
    attacked.in_store(lambda store: store.exists(segment) or store.create(segment))
    for name in GRANTS:
        with attacked.client(name) as client:
            if name in readers:
                client.info(segment)
            else:
                with pytest.raises(Forbidden):
                    client.info(segment)


def test_only_who_deploys_a_pipeline_stages_for_it(attacked: Attacked) -> None:
    name = "staging/demo/-/0/0-0/out"
    for principal in ("reader", "writer", "tenant", "neighbour", "nobody"):
        with attacked.client(principal) as client:
            for change in (client.create, client.delete, client.appender):
                with pytest.raises((Forbidden, Unauthenticated)):
                    change(name)
    with attacked.client("deployer") as client, client.appender(name, create=True) as appender:
        appender.append(b"row")
        for principal in ("tenant", "neighbour"):
            with attacked.client(principal) as other, pytest.raises(Forbidden):
                other.delete(name)
    with attacked.client("deployer") as client:
        client.delete(name)


def test_only_an_administrator_truncates_or_deletes_what_is_damaged(attacked: Attacked) -> None:
    name = "connector/demo/7"

    def damage(store: SegmentStore) -> None:
        store.create(name)
        store.append(name, [b"12"])
        store.note_damage(name, Damaged("a bit has flipped"))

    attacked.in_store(damage)
    for principal in ("writer", "tenant", "deployer", "neighbour"):
        with attacked.client(principal) as client, pytest.raises(Forbidden):
            client.delete(name)
    with attacked.client("admin of demo") as client:
        client.truncate(name, 1)
        client.delete(name)


def test_a_connection_belongs_to_one_principal(attacked: Attacked) -> None:
    """Its appends carry no token: they are those of the principal that has set them up."""
    first, other = attacked.tokens["tenant"], attacked.tokens["writer"]
    with Peer(attacked) as peer:
        assert isinstance(peer.ask(CreateSegment(f"demo/{uuid4()}", token=first, request_id=1)), SegmentCreated)
        assert isinstance(peer.ask(GetSegmentInfo("demo/merged", other, 2)), AuthTokenCheckFailed)
        assert isinstance(peer.ask(GetSegmentInfo("demo/merged", "", 3)), AuthTokenCheckFailed)


# Quotas.


def test_a_principal_cannot_pass_or_raise_its_quota(attacked: Attacked) -> None:
    name, second = f"saver/{uuid4()}", f"saver/{uuid4()}"
    with attacked.client("saver") as client:
        client.create(name)
        assert client.attribute(name, QUOTA) == QUOTA_BYTES
        raising: list[Callable[[], object]] = [
            lambda: client.create(f"saver/{uuid4()}", quota_bytes=2**40),
            lambda: client.set_attribute(name, QUOTA, 2**40),
            lambda: client.set_attribute(name, QUOTA, 2**40, expected=QUOTA_BYTES),
            lambda: client.merge(name, second, [AttributeUpdate(QUOTA, 2**40)]),
        ]
        for change in raising:
            with pytest.raises(Forbidden, match=r"needs admin on segment .* to change its quota"):
                change()
        with client.appender(name) as appender:
            appender.append(b"x" * 3000)
        with attacked.owner() as owner, owner.appender(second, create=True) as appender:
            appender.append(b"x" * 3000)
        with pytest.raises(QuotaReached):
            client.merge(name, second)
    with at_once(attacked, "saver") as client, pytest.raises(QuotaReached), client.appender(name) as appender:
        appender.append(b"x" * 3000)
    with attacked.owner() as client:
        client.set_attribute(name, QUOTA, 2**20)
        client.merge(name, second)
        client.delete(name)


def at_once(attacked: Attacked, principal: str) -> SegmentClient:
    return SegmentClient(attacked.worker.address, token=attacked.tokens[principal], retry_seconds=0)


def test_a_quota_also_limits_what_is_staged(attacked: Attacked) -> None:
    """Also for a pipeline that does not exist, whose staged segments nobody merges."""
    token = attacked.added(StoredGrant("stager", "deploy", ["stager"], quota_bytes=QUOTA_BYTES))
    with SegmentClient(attacked.worker.address, token=token, retry_seconds=0) as client:
        for number, size in enumerate((3000, 1000)):
            with client.appender(f"staging/stager-none/1/0/{number}-0/out", create=True) as appender:
                appender.append(b"x" * (size - 8))
        appender = client.appender("staging/stager-none/1/0/2-0/out", create=True)
        with (
            pytest.raises(QuotaReached, match="'stager' has staged 4000 of 4096 bytes: no room for 100 more"),
            appender,
        ):
            appender.append(b"x" * 92)


def test_a_quota_is_for_all_that_a_principal_stores(attacked: Attacked) -> None:
    """However many segments and sources it divides it into. Others, and what others have, do not count."""
    names = [f"lodger/{number}" for number in range(4)]

    def append(name: str, size: int) -> None:
        """An event is preceded by 8 bytes."""
        with at_once(attacked, "lodger") as client, client.appender(name, create=True) as appender:
            appender.append(b"x" * (size - 8))

    with attacked.owner() as owner, owner.appender("demo/large", create=True) as appender:
        appender.append(b"x" * 2 * QUOTA_BYTES)
    append(names[0], 3000)
    for name in names[1:]:
        with pytest.raises(QuotaReached, match="'lodger' has stored 3000 of 4096 bytes: no room for 2000 more"):
            append(name, 2000)
    append(names[1], 1000)
    with attacked.client("lodger") as client:
        client.truncate(names[0], 2000)
    append(names[2], 2000)
    with pytest.raises(QuotaReached, match="has stored 4000 of 4096 bytes"):
        append(names[3], 100)
    with attacked.client("lodger") as client:
        for name in names[:3]:
            client.delete(name)
    append(names[3], QUOTA_BYTES)
    with pytest.raises(LimitExceeded, match="can never fit"):
        append("lodger/other", QUOTA_BYTES + 1)

    sources = attacked.worker._worker._sources
    with attacked.owner() as owner:
        run_source(attacked, "lodger", COOKIE)
        assert sources.existing("lodger").has_room(), "the cookie has no quota"
        source = attacked.source("lodger", attacked.tokens["lodger"].encode())
        source.stream("more", lambda after: iter([(1, b"one")] if after is None else []))
        sending = threading.Thread(target=source.run)
        sending.start()
        until(lambda: not sources.existing("lodger").has_room())
        status = attacked.worker._worker.status
        until(lambda: any("lodger" in one.text for one in status().blockages))
        owner.truncate(names[3], QUOTA_BYTES)
        sending.join(60)
        assert not sending.is_alive(), "there is room again"


def test_a_quota_also_limits_the_number_of_segments(attacked: Attacked) -> None:
    """Empty ones take memory, too. A source counts as the segments that it has."""
    token = attacked.added(StoredGrant("hoarder", "deploy", ["hoarder"], quota_bytes=QUOTA_BYTES))
    limit = 100 + QUOTA_BYTES // 1024
    refusal = f"'hoarder' has {limit} segments: its quota of {QUOTA_BYTES} bytes allows {limit}"
    with SegmentClient(attacked.worker.address, token=token, retry_seconds=0) as client:
        for number in range(limit):
            client.create(f"hoarder/{number}")
            client.create(f"staging/hoarder/1/0/{number}-0/out")
        for one_more in ("hoarder/one-more", "staging/hoarder/1/0/one-more-0/out"):
            with pytest.raises(QuotaReached, match=refusal):
                client.create(one_more)
        with pytest.raises(SegmentExists):
            client.create("hoarder/0")
        with pytest.raises(RequestError, match=f"'hoarder-source' cannot be created: {refusal}"):
            run_source(attacked, "hoarder-source", token.encode())
        client.delete("hoarder/0")
        client.create("hoarder/one-more")


# The worker's own connectors.


def test_the_worker_s_connectors_write_with_a_token_of_their_own(attacked: Attacked) -> None:
    """For `segment:NAME` as a sink, and the connector `segment`; no file has it."""
    port = attacked.worker._worker._own_segments()
    name = f"demo/{uuid4()}"
    with SegmentClient(port.address, token=port.token) as client:
        client.create(name, quota_bytes=2**30)
        with pytest.raises(RequestError, match="cannot be changed over this port"):
            client.delete("connector/demo/0")
    assert port.token not in repr(port)
    with pytest.raises(Refused):
        run_source(attacked, "demo", port.token.encode())


def test_another_worker_never_sees_the_own_token() -> None:
    own = SegmentPort("127.0.0.1:1", "own token")
    host = cast("Host", SimpleNamespace(segment_port=own))
    for options, token in (
        ({}, "own token"),
        ({"worker": "127.0.0.1:2"}, ""),
        ({"worker": "127.0.0.1:2", "token": "its token"}, "its token"),
    ):
        connector = Segment(SegmentOptions.model_validate({"segment": "s", **options}))
        assert connector._connected(host)._token == token
        assert "its token" not in repr(connector.options)


# Pipelines that would hold another tenant's acknowledgements, or write its segments.


@pytest.fixture
def neighbour(attacked: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorClient]:
    (tmp_path / "token").write_text(attacked.tokens["neighbour"])
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "token"))
    with CoordinatorClient(f"127.0.0.1:{attacked.worker.ports['http']}", 0) as client:
        yield client


def test_a_rogue_pipeline_cannot_hold_another_tenant_s_acknowledgements(
    attacked: Attacked, neighbour: CoordinatorClient
) -> None:
    run_source(attacked, "demo-acked", COOKIE)
    for source in ("demo-acked", "pipeline:demo/out", "segment:demo/merged"):
        inputs = {"in": InputSpec([source], "earliest")}
        with pytest.raises(Forbidden, match="its acknowledgements would wait for the pipeline"):
            neighbour.start("other-pipeline", inputs)
        with pytest.raises(Forbidden, match="this needs deploy on 'demo"):
            neighbour.start("demo-pipeline", inputs)
    generation = neighbour.start("other-pipeline", {"in": InputSpec(["other-source"], "earliest")}).generation
    with pytest.raises(Forbidden):
        neighbour.attach("other-pipeline", generation, "in", "load", ["demo-acked"])
    program = attacked.source("demo-acked", COOKIE)
    sent = program.stream("another", lambda after: iter([(1, b"one")] if after is None else []))
    program.run()  # returns when it is acknowledged
    assert sent.acknowledged == 1


def test_only_who_may_run_a_pipeline_on_a_source_buries_its_events(
    attacked: Attacked, neighbour: CoordinatorClient, segment: str
) -> None:
    neighbour.start("other-pipeline", {"in": InputSpec(["other-source"], "earliest")})
    with pytest.raises(Forbidden, match=f"needs deploy on segment '{segment}'"):
        neighbour.bury("other-pipeline", [EventPlace(segment, 0)])
    with pytest.raises(Forbidden, match="needs deploy on 'demo-pipeline'"):
        neighbour.bury("demo-pipeline", [EventPlace("connector/other-source/0", 0)])
    with pytest.raises(PipelineError, match="segment 'connector/other-source/0' not found"):
        neighbour.bury("other-pipeline", [EventPlace("connector/other-source/0", 0)])
    assert attacked.worker._worker.coordinator().burials.listed("other-pipeline") == []


def test_a_sink_cannot_write_another_tenant_s_segment(
    attacked: Attacked, neighbour: CoordinatorClient, segment: str
) -> None:
    for url in (f"segment:{segment}", f"segment:{segment}?quota=1GiB"):
        with pytest.raises(Forbidden, match="needs deploy on segment 'demo/"):
            neighbour.bind("other-pipeline", {"out": SinkSpec("out", url)})
    assert attacked.worker._worker._delivery.sinks() == []


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("turnover", "needs deploy on connector 'turnover'"),
        ("segment:other-a?worker=127.0.0.1:9&token=${HOME}", "the worker's environment variables and files"),
        ("segment:other-a?worker=127.0.0.1:9&token=${file:README.md}", "the worker's environment variables and files"),
        ("postgresql://postgres@127.0.0.1:9/db?table=t", "the worker's files and credentials"),
        ("connector://127.0.0.1:9?cookie_file=/tmp/secret", "the worker's files and credentials"),
        ("file:/tmp/others?mode=append", "the worker's files and credentials"),
        ("sqlite:/tmp/others.db?table=t", "the worker's files and credentials"),
        ("stdout:", "the worker's files and credentials"),
    ],
)
def test_a_sink_uses_no_connector_variable_or_file_of_others(
    neighbour: CoordinatorClient, url: str, refused: str
) -> None:
    with pytest.raises(Forbidden, match=refused):
        neighbour.bind("other-pipeline", {"out": SinkSpec("out", url)})


def test_a_token_in_a_sink_s_url_is_a_reference(attacked: Attacked) -> None:
    with (
        CoordinatorClient(f"127.0.0.1:{attacked.worker.ports['http']}", 5) as owner,
        pytest.raises(RequestError, match="anyone can see the token in a URL") as caught,
    ):
        owner.bind("demo-pipeline", {"out": SinkSpec("out", "segment:demo-a?worker=127.0.0.1:9&token=hunter2")})
    assert "hunter2" not in str(caught.value)


# Revoked while connected.


def test_a_revoked_token_ends_what_is_connected(attacked: Attacked) -> None:
    token = attacked.added(StoredGrant("guest", "write", ["guest"]))
    with attacked.owner() as owner:
        owner.create("guest/events")
    with attacked.client(token=token) as client, Peer(attacked) as reading:
        appender = client.appender("guest/events")
        appender.append(b"1")
        appender.flush()
        reading.socket.sendall(VERSIONED.encode(ReadSegment("guest/events", 9, 100, token, 1)))  # waits at the tail
        attacked.access.revoke("guest")
        with pytest.raises((EOFError, ConnectionResetError)):
            reading.reply()
        with pytest.raises(Unauthenticated):  # after it has connected again
            append_until_refused(appender)
        appender.close()


def append_until_refused(appender: Appender) -> None:
    while True:
        appender.append(b"2")
        appender.flush()


# The document's dialect has no tokens.


def ask_in_document_s_dialect(attacked: Attacked, request: Message) -> Incoming:
    with Peer(attacked, DOCUMENT) as peer:
        return peer.ask(request)


def test_the_document_s_dialect_needs_a_principal_for_everybody(attacked: Attacked, segment: str) -> None:
    request, others = SetupAppend(uuid4().bytes, "anyone/events"), SetupAppend(uuid4().bytes, segment)
    for refused in (request, others, ReadSegment(segment, 0, 1)):
        assert isinstance(ask_in_document_s_dialect(attacked, refused), AuthTokenCheckFailed)
    attacked.added(StoredGrant("anonymous", "write", ["anyone/"], quota_bytes=QUOTA_BYTES))
    try:
        assert isinstance(ask_in_document_s_dialect(attacked, request), AppendSetup)
        for refused in (others, ReadSegment(segment, 0, 1), SetupAppend(uuid4().bytes, "staging/anyone/-/0/0-0/out")):
            assert isinstance(ask_in_document_s_dialect(attacked, refused), AuthTokenCheckFailed)
        with attacked.owner() as owner:
            assert owner.attribute("anyone/events", QUOTA) == QUOTA_BYTES
    finally:
        attacked.access.revoke("anonymous")
    until(lambda: isinstance(ask_in_document_s_dialect(attacked, request), AuthTokenCheckFailed))


def test_only_the_running_generation_of_a_pipeline_stages(attacked: Attacked) -> None:
    with CoordinatorClient(f"127.0.0.1:{attacked.worker.ports['http']}", 10) as coordinator:
        inputs = {"main": InputSpec(("demo-staged",), "earliest")}
        old, new = (coordinator.start("demo-staging", inputs).generation for _ in range(2))
        assert old != new
    with attacked.client("deployer") as client:
        client.create(f"staging/demo-staging/{new}/0/0-0/out")
        for wrong in (str(old), str(new + 1), "x", ""):
            name = f"staging/demo-staging/{wrong}/0/0-0/out"
            with pytest.raises(Fenced, match=f"'demo-staging' runs as generation {new}$") as caught:
                client.create(name)
            assert "Another run of the pipeline has replaced this one" in caught.value.hint
            with pytest.raises(Fenced):
                client.appender(name, create=True).append(b"1")
        assert client.info(f"staging/demo-staging/{new}/0/0-0/out").length == 0


def test_a_late_task_may_delete_what_it_has_staged(attacked: Attacked) -> None:
    with CoordinatorClient(f"127.0.0.1:{attacked.worker.ports['http']}", 10) as coordinator:
        inputs = {"main": InputSpec(("demo-late",), "earliest")}
        old = coordinator.start("demo-late", inputs).generation
        name = f"staging/demo-late/{old}/0/0-0/out"
        with attacked.client("deployer") as client:
            client.create(name)
            coordinator.start("demo-late", inputs)
            with suppress(NoSuchSegment):  # the sweep may be faster
                client.delete(name)
            with pytest.raises(NoSuchSegment):
                client.info(name)


# Certificates.


def test_a_listed_certificate_is_a_principal_on_both_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    data = tmp_path / "data"
    access = access_of(data)
    access.add(StoredGrant("machine", "write", ["demo"], certificate="machine.example.org"))
    with running_worker(data, access=access, ssl=server_context(mutual=True), cookie=COOKIE) as worker:
        listed = client_context(certificate=True, name="machine.example.org")
        unknown = client_context(certificate=True, name="other.example.org")
        with SegmentClient(worker.address, ssl=listed, token="") as client:
            client.create("demo/one")
            with pytest.raises(Forbidden):
                client.create("other/one")
        with SegmentClient(worker.address, ssl=unknown, token="") as client, pytest.raises(Unauthenticated):
            client.info("demo/one")
        with SegmentClient(worker.address, ssl=unknown, token=TOKEN) as client:
            client.create("other/one")

        def run(name: str, context: object, cookie: bytes) -> None:
            address = f"127.0.0.1:{worker.ports['connector']}"
            source = Source(address, source=name, ssl=context, cookie=cookie)  # type: ignore[arg-type]
            source.stream("s", lambda _: iter([(1, b"one")]))
            source.run()

        run("demo", listed, b"")
        run("demo", listed, COOKIE)
        run("other", unknown, COOKIE)
        with pytest.raises(Refused, match="'machine' has the role write for names that start with demo"):
            run("other", listed, COOKIE)
        with pytest.raises(Refused, match="cookie is wrong"):
            run("demo", unknown, b"wrong")


# The connector port.


def run_source(attacked: Attacked, name: str, cookie: bytes = b"") -> None:
    source = attacked.source(name, cookie)
    source.stream("s", lambda after: iter([(1, b"one")] if after is None else []))
    source.run()


def test_the_cookie_or_a_token_lets_a_program_in(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    run_source(attacked, "demo-cookie", COOKIE)
    run_source(attacked, "demo-tenant", attacked.tokens["tenant"].encode())
    assert TOKEN_FILE.exists()
    run_source(attacked, "demo-owner")  # the file of the environment
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    for cookie in (b"", b"wrong", COOKIE[:-1], b"\xff\xfe", b"x" * 60_000):
        with pytest.raises(Refused, match="the cookie is wrong"):
            run_source(attacked, "demo-cookie", cookie)


def test_a_token_limits_a_program_to_its_sources(attacked: Attacked) -> None:
    with pytest.raises(Refused, match="'tenant' has the role write for names that start with demo"):
        run_source(attacked, "orders", attacked.tokens["tenant"].encode())
    with pytest.raises(Refused, match="needs write on source 'demo'"):
        run_source(attacked, "demo", attacked.tokens["reader"].encode())
    with attacked.owner() as client:
        assert not attacked.worker._worker._sources.get("orders")
        with pytest.raises(RequestError):
            client.info("connector/orders/0")


def test_a_source_gets_the_quota_of_the_principal_that_joins_it(attacked: Attacked) -> None:
    run_source(attacked, "saver-quota", attacked.tokens["saver"].encode())
    run_source(attacked, "demo-free", COOKIE)
    sources = attacked.worker._worker._sources
    assert sources.settings_of("saver-quota").quota_bytes == sources.existing("saver-quota").settings.quota_bytes
    assert sources.settings_of("saver-quota").quota_bytes == QUOTA_BYTES
    assert sources.settings_of("demo-free").quota_bytes == sources.settings.source.quota_bytes


def test_a_quota_also_limits_the_number_of_streams(attacked: Attacked) -> None:
    """Of all its sources together. They are remembered, though nothing is stored of them."""
    token = attacked.added(StoredGrant("opener", "write", ["opener"], quota_bytes=QUOTA_BYTES)).encode()
    limit = 100 + QUOTA_BYTES // 1024
    assert "allows" not in notified(attacked, token, "opener-1", 0, limit // 2)
    assert f"its sources have {limit} streams: a quota of {QUOTA_BYTES} bytes allows {limit}" in notified(
        attacked, token, "opener-2", limit // 2, 1000
    )
    sources = [attacked.worker._worker._sources.existing(name) for name in ("opener-1", "opener-2")]
    assert sum(len(source.streams) for source in sources) == limit
    assert "allows" not in notified(attacked, token, "opener-1", 0, limit // 2), "known streams can be opened again"


def notified(attacked: Attacked, token: bytes, source: str, first: int, count: int) -> str:
    """Open so many streams. Returns the ERROR, if there is one."""
    notifies = [programs.Notify(number, str(number)) for number in range(first, first + count)]
    with socket.create_connection(("127.0.0.1", attacked.connector_port), 30) as peer:
        decoder, opened = programs.Decoder(programs.Use.SOURCE), 0
        peer.sendall(b"".join(map(programs.encode, [programs.Hello("0.0.1", token, "p", source), *notifies])))
        while opened < count and (data := peer.recv(65536)):
            for frame in decoder.feed(data):
                if isinstance(frame, programs.Error):
                    return frame.text
                opened += isinstance(frame, programs.NotifyAck)
    return ""


def test_a_revoked_token_ends_its_session(attacked: Attacked) -> None:
    token = attacked.added(StoredGrant("visitor", "write", ["visitor"]))
    with socket.create_connection(("127.0.0.1", attacked.connector_port), 30) as peer:
        hello = programs.encode(programs.Hello("0.0.1", token.encode(), "p", "visitor"))

        def frames() -> list[object]:
            return [*decoder.feed(peer.recv(65536))]

        decoder = programs.Decoder(programs.Use.SOURCE)
        peer.sendall(hello)
        assert isinstance(frames()[0], programs.Ok)
        attacked.access.revoke("visitor")
        (error,) = frames()
        assert isinstance(error, programs.Error)
        assert "revoked" in error.text


def test_no_cookie_admits_everybody_except_beyond_what_a_token_allows(tmp_path: Path) -> None:
    data = tmp_path / "data"
    access = access_of(data)
    token = access.add(StoredGrant("tenant", "write", ["demo"]))
    with running_worker(data, access=access) as worker:
        attacked = Attacked(worker, access, {})
        run_source(attacked, "anything", b"any cookie")
        run_source(attacked, "demo", token.encode())
        with pytest.raises(Refused, match="'tenant'"):
            run_source(attacked, "anything", token.encode())
