"""The connector port of a standby: what each source gets, and what a splice passes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import trustme

from penstock.access.file import AccessControl, AccessFile, StoredGrant
from penstock.bucket.stores import open_bucket
from penstock.client.credentials import TLS_VARIABLES
from penstock.client.segments import SegmentClient
from penstock.cluster.places import PLACES
from penstock.cluster.records import WorkerRecord
from penstock.core.address import Address
from penstock.core.errors import BucketUnreachable, RequestError
from penstock.core.tls_handshakes import with_tls
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.connector import (
    Ack,
    Acked,
    Error,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    Ok,
    Restart,
    encode,
)
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.worker.cluster import choose
from penstock.worker.directory import Directory
from penstock.worker.redirects import RETURN_SECONDS, OwnerOf, RedirectPort, Redirects, Route, route
from penstock.worker.settings import Redirect
from tests.ingest.conftest import Peer
from tests.support.running_worker import running_worker
from tests.support.tls import CA, client_context, server_context
from tests.support.waiting import SECONDS_MAX, eventually

HELLO = Hello("0.0.1", b"", "program", "source")


# Decisions.


def test_a_program_is_sent_once_and_spliced_when_it_comes_back() -> None:
    redirects = Redirects(Redirect.AUTO)
    assert redirects.choose("host", HELLO, 100.0) is Redirect.RESTART
    assert redirects.choose("host", HELLO, 100.0 + RETURN_SECONDS - 1) is Redirect.SPLICE
    assert redirects.choose("host", HELLO, 100.0 + 3 * RETURN_SECONDS) is Redirect.RESTART
    assert redirects.choose("other host", HELLO, 100.0) is Redirect.RESTART


def test_either_way_can_be_chosen_for_all() -> None:
    for mode in (Redirect.RESTART, Redirect.SPLICE):
        assert [Redirects(mode).choose("host", HELLO, 0.0) for _ in range(3)] == [mode] * 3


def test_nothing_is_spliced_where_programs_need_a_certificate() -> None:
    """The owner would see the standby's."""
    for mode in Redirect:
        port = RedirectPort(ProgramServerSettings(ssl=server_context(mutual=True)), mode, always(None))
        assert [port.redirects.choose("host", HELLO, 0.0) for _ in range(3)] == [Redirect.RESTART] * 3


def test_only_so_many_programs_are_remembered() -> None:
    redirects = Redirects(Redirect.AUTO)
    for number in range(20_000):
        redirects.choose(f"host {number}", HELLO, 0.0)
    assert redirects.choose("host 0", HELLO, 0.0) is Redirect.RESTART
    assert redirects.choose("host 19999", HELLO, 0.0) is Redirect.SPLICE


def test_a_shard_moves_to_a_standby_that_listens_and_is_not_drained() -> None:
    def worker(name: str, *, is_drained: bool = False, **addresses: str) -> WorkerRecord:
        return WorkerRecord(worker=name, revision=1, addresses=addresses, is_drained=is_drained, waits_for=(3,))

    records = [
        worker("a", connector="a:1"),
        worker("b", connector="b:1", is_drained=True),
        worker("c"),
        worker("d", connector="d:1"),
    ]
    assert [one.worker for one in choose(records, "a", 3, "")] == ["d"]
    assert [one.worker for one in choose(records, "a", 3, "b")] == ["b"]
    for to in ("a", "c", "nobody"):
        with pytest.raises(RequestError, match="does not wait for shard 3"):
            choose(records, "a", 3, to)
    with pytest.raises(RequestError, match="there is no other worker"):
        choose(records[:3], "a", 3, "")
    with pytest.raises(RequestError, match="there is no other worker"):
        choose(records, "a", 4, "")


# Connections.


def always(address: Address | None) -> OwnerOf:
    async def owner_of(_: str) -> Route:
        return address

    return owner_of


class Owner:
    """Accepts what is passed on."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.port = 0

    async def start(self, cleanup: AsyncExitStack) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            cleanup.callback(writer.transport.abort)
            await self.connections.put((reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        cleanup.callback(server.close)
        self.port = server.sockets[0].getsockname()[1]

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(self.connections.get(), SECONDS_MAX)


class Standby:
    def __init__(self, cleanup: AsyncExitStack) -> None:
        self._cleanup = cleanup
        self.owner = Owner()

    async def connect(
        self,
        mode: Redirect = Redirect.SPLICE,
        *,
        is_known: bool = True,
        owner_of: OwnerOf | None = None,
        cookie: bytes = b"",
        access: AccessControl | None = None,
    ) -> Peer:
        await self.owner.start(self._cleanup)
        address = Address("127.0.0.1", self.owner.port) if is_known else None
        settings = ProgramServerSettings(cookie=cookie)
        self.port = RedirectPort(settings, mode, owner_of or always(address), access=access)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.port.connection, "127.0.0.1", 0)
        self._cleanup.callback(server.close)
        self._cleanup.callback(self.port.close)
        self._listens_on = server.sockets[0].getsockname()[1]
        return await self.connect_again()

    async def connect_again(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self._listens_on))
        self._cleanup.push_async_callback(peer.close)
        return peer


@pytest.fixture
async def standby() -> AsyncIterator[Standby]:
    async with AsyncExitStack() as cleanup:
        yield Standby(cleanup)


async def test_migrate_is_for_programs_that_announce_it(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send(Hello("0.0.1+migrate", b"", "p", "source"))
    assert await peer.frame() == Migrate("127.0.0.1", standby.owner.port)
    peer.send(MigrateAck())
    assert await peer.frames_until_closed() == []


async def test_others_get_ok_without_credits_and_restart(standby: Standby) -> None:
    peer = await standby.connect(Redirect.RESTART)
    peer.send(HELLO, Notify(1, "one"))
    assert await peer.frames_until_closed() == [Ok(0), Restart(f"127.0.0.1:{standby.owner.port}")]


async def test_a_program_of_another_version_gets_an_error(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send(Hello("0.0.2", b"", "p", "source"))
    (frame,) = await peer.frames_until_closed()
    assert isinstance(frame, Error)


async def test_for_programs_without_access_no_owner_is_looked_for(standby: Standby, tmp_path: Path) -> None:
    """Looking would give their sources places, which are for ever."""
    asked = list[str]()

    async def owner_of(source: str) -> Route:
        asked.append(source)
        return None

    access = AccessFile(tmp_path)
    token = access.add(StoredGrant(name="shop", role="write", prefixes=["shop-"])).encode()
    for cookie, source in ((b"wrong", "shop-1"), (token, "bank"), (b"right", "any"), (token, "shop-1")):
        peer = await standby.connect(owner_of=owner_of, cookie=b"right", access=access)
        peer.send(Hello("0.0.1", cookie, "p", source))
        frames = await peer.frames_until_closed()
        assert bool(frames) == (source not in asked)
        assert all(isinstance(frame, Error) for frame in frames)
    assert asked == ["any", "shop-1"]


async def test_a_host_refuses_what_is_not_a_source_of_programs(standby: Standby) -> None:
    bucket = open_bucket(f"memory://{uuid4().hex}")
    directory = Directory(bucket)
    for name in ("system.streams", "pipeline:p/out", "a/b", "x" * 201):
        peer = await standby.connect(owner_of=lambda source: route(directory, source))
        peer.send(Hello("0.0.1", b"", "p", name))
        (frame,) = await peer.frames_until_closed()
        assert isinstance(frame, Error)
    assert await route(directory, "orders", is_placed=False) is None  # nobody serves its shard yet
    assert [*bucket.list(PLACES)] == []


async def test_while_no_owner_is_known_the_connection_is_closed_without_an_error(standby: Standby) -> None:
    peer = await standby.connect(is_known=False)
    peer.send(HELLO)
    assert await peer.frames_until_closed() == []


async def test_while_the_store_is_away_sources_that_try_again_and_again_are_one_line_of_the_log(
    standby: Standby, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [BucketUnreachable("one"), BucketUnreachable("two"), None, BucketUnreachable("three")]

    async def owner_of(_: str) -> Route:
        if (error := errors.pop(0)) is not None:
            raise error
        return None

    peer = await standby.connect(owner_of=owner_of)
    while errors:
        peer.send(HELLO)
        assert await peer.frames_until_closed() == []
        peer = await standby.connect_again()
    assert [one.getMessage() for one in caplog.records] == ["sources wait: one", "sources wait: three"]


async def test_what_was_sent_before_the_splice_is_passed_on(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send(HELLO, Notify(1, "one"))
    reader, writer = await standby.owner.accept()
    sent = encode(HELLO) + encode(Notify(1, "one"))
    assert await reader.readexactly(len(sent)) == sent
    writer.write(encode(Ok(7)))
    assert await peer.frame() == Ok(7)


async def test_an_end_of_one_direction_is_passed_on_and_the_other_continues(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send(HELLO)
    reader, writer = await standby.owner.accept()
    peer.writer.write_eof()
    assert await asyncio.wait_for(reader.read(), SECONDS_MAX) == encode(HELLO)
    writer.write(encode(Ok(7)))
    assert await peer.frame() == Ok(7)
    writer.close()
    assert await peer.frames_until_closed() == []


async def test_when_both_directions_have_ended_nothing_is_left(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send(HELLO)
    reader, writer = await standby.owner.accept()
    await reader.readexactly(len(encode(HELLO)))
    writer.transport.abort()
    assert await peer.frames_until_closed() == []
    await peer.close()
    await eventually(lambda: not standby.port.connections)


async def test_if_the_owner_cannot_be_reached_the_connection_is_closed(standby: Standby) -> None:
    peer = await standby.connect()
    standby.owner.port = 1
    standby.port.owner_of = always(Address("127.0.0.1", 1))
    peer.send(HELLO)
    assert await peer.frames_until_closed() == []


@pytest.fixture
async def tls_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RedirectPort:
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv(TLS_VARIABLES[0], str(tmp_path / "ca.pem"))
    return RedirectPort(ProgramServerSettings(ssl=server_context()), Redirect.SPLICE, always(None))


@asynccontextmanager
async def program_at(port: RedirectPort) -> AsyncIterator[Peer]:
    """With TLS."""
    factory = with_tls(port.connection, port.settings.ssl, port.settings.handshake_seconds)
    async with await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        peer = Peer(*await asyncio.open_connection(*address, ssl=client_context()))
        yield peer
        await peer.close()
        await eventually(lambda: not port.connections)


async def test_with_tls_a_program_is_passed_on_over_tls(tls_port: RedirectPort, tmp_path: Path) -> None:
    values = [b"%d" % number * 100 for number in range(20)]
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        tls_port.owner_of = always(Address("127.0.0.1", worker.ports["connector"]))
        async with program_at(tls_port) as peer:
            peer.send(HELLO)
            assert await peer.open(1) == NOTHING_YET
            peer.send(*(Message(1, number, 0, b"", value) for number, value in enumerate(values)))
            last = Acked(1, len(values) - 1)
            while not isinstance(frame := await peer.frame(), Ack) or last not in frame.acked:
                pass
        with SegmentClient(worker.address, ssl=client_context()) as segments:
            _, *stored = (bytes(event.data) for event in segments.events(f"connector/{HELLO.instance}/0"))
        assert [event[-len(value) :] for event, value in zip(stored, values, strict=True)] == values


async def test_with_tls_an_owner_without_a_certificate_of_the_authority_gets_nothing(
    tls_port: RedirectPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv(TLS_VARIABLES[0], str(tmp_path / "other.pem"))
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        tls_port.owner_of = always(Address("127.0.0.1", worker.ports["connector"]))
        async with program_at(tls_port) as peer:
            peer.send(HELLO, Notify(1, "one"))
            assert await peer.frames_until_closed() == []


async def test_with_files_of_tls_that_cannot_be_used_a_program_is_closed(
    tls_port: RedirectPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TLS_VARIABLES[0], str(tmp_path / "missing.pem"))
    tls_port.owner_of = always(Address("127.0.0.1", 1))
    async with program_at(tls_port) as peer:
        peer.send(HELLO)
        assert await peer.frames_until_closed() == []


async def test_a_side_that_does_not_read_stops_the_other_one(standby: Standby) -> None:
    """The splice keeps little: what it has taken is bounded by its limit and the kernel's buffers."""
    peer = await standby.connect()
    peer.send(HELLO)
    reader, _ = await standby.owner.accept()
    reader._transport.pause_reading()  # type: ignore[attr-defined]

    async def flood() -> None:
        for _ in range(64):
            peer.writer.write(bytes(1 << 20))
            await asyncio.wait_for(peer.writer.drain(), 2.0)

    with pytest.raises(TimeoutError):
        await flood()
    (connection,) = standby.port.connections
    assert connection._splice is not None
    assert connection._splice._owner is not None
    assert connection._splice._owner.get_write_buffer_size() < 1 << 20
    peer.writer.transport.abort()


async def test_sources_without_an_answer_are_closed_when_the_worker_becomes_the_owner(standby: Standby) -> None:
    peer = await standby.connect()
    await eventually(lambda: standby.port.connections)
    standby.port.close_unanswered()
    assert await peer.frames_until_closed() == []


async def test_a_program_that_never_says_hello_but_sends_is_cut_off(standby: Standby) -> None:
    peer = await standby.connect()
    peer.send((1 << 30).to_bytes(4, "big") + bytes(100))
    frames = await peer.frames_until_closed()
    assert not frames or isinstance(frames[0], Error)
