"""Servers of applications: clients without credentials store nothing, and web pages are admitted only if they are
listed.
"""

import asyncio
import base64
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock.connectors.api import Connector
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.connectors.server_auth import LINE_BYTES_MAX, ServerAuth
from penstock.core.errors import RequestError
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually

TOKEN, PASSWORD = "first-of-two-tokens", "open: sesame"
KINDS = ("tcp-server", "ws-server", "http-server")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", TOKEN)
    monkeypatch.setenv("SERVER_PASSWORD", PASSWORD)


AUTH = {"bearer": ["${SERVER_TOKEN}", "second"], "basic": {"ali baba": "${SERVER_PASSWORD}"}}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


GOOD = (f"Bearer {TOKEN}", "bearer second", basic("ali baba", PASSWORD))
BAD = (
    "",
    "Bearer",
    "Bearer ",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    TOKEN,
    f"Basic {TOKEN}",
    basic("ali baba", "wrong"),
    basic("somebody", PASSWORD),
    basic("", ""),
    "Basic !!!",
    "Basic /////w==",
    "Bearer ${SERVER_TOKEN}",
)


class Client:
    """Of any of the servers: sends one event."""

    def __init__(self, kind: str, tested: Connector[Any], context: ssl.SSLContext | None = None) -> None:
        self._kind = kind
        self._address = tested.addresses[0]  # type: ignore[attr-defined]
        self._context = context

    async def send(self, authorization: str, event: bytes = b"event") -> None:
        """Raises ConnectionError if it is refused."""
        headers = {"Authorization": authorization} if authorization else {}
        match self._kind:
            case "tcp-server":
                await self._tcp(authorization, event)
            case "ws-server":
                await self._ws(headers, event)
            case "http-server":
                await self._http(headers, event)

    async def _tcp(self, authorization: str, event: bytes) -> None:
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self._context)
        try:
            writer.write(f"{authorization}\r\n".encode() + event)
            if self._context is None:
                writer.write_eof()
                assert await asyncio.wait_for(reader.read(), SECONDS_MAX) == b""
            else:  # TLS has no half-closed connections
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), SECONDS_MAX)
        except ssl.SSLError as error:
            raise ConnectionError(error) from error
        finally:
            writer.transport.abort()

    async def _ws(self, headers: dict[str, str], event: bytes) -> None:
        scheme = "ws" if self._context is None else "wss"
        try:
            opened = connect(f"{scheme}://{self._address}/", additional_headers=headers, ssl=self._context)
            async with opened as peer:
                await peer.send(event)
        except InvalidStatus as error:
            if error.response.status_code == 401 and "www-authenticate" not in error.response.headers:
                raise AssertionError("the client does not learn which credentials to send") from error
            raise ConnectionError(error) from error

    async def _http(self, headers: dict[str, str], event: bytes) -> None:
        scheme = "http" if self._context is None else "https"
        async with httpx.AsyncClient(verify=self._context or False) as client:
            try:
                reply = await client.post(f"{scheme}://{self._address}/", content=event, headers=headers)
            except httpx.TransportError as error:
                raise ConnectionError(error) from error
        if reply.status_code >= 400:
            assert (reply.status_code, "www-authenticate" in reply.headers) == (401, True)
            assert "access-control-allow-origin" not in reply.headers
            raise ConnectionError(reply.status_code)


def has_events(host: RecordingHost) -> bool:
    return any(stream.events for stream in host.streams)


async def refused(client: Client, authorization: str) -> None:
    try:
        await client.send(authorization)
    except ConnectionError:
        return
    # A TCP server can only close the connection: what it has not stored was refused.


@pytest.mark.parametrize("kind", KINDS)
async def test_only_a_client_with_credentials_stores_events(kind: str) -> None:
    tested, host = make_connector(kind, {"port": 0, "auth": AUTH}), RecordingHost(has_in=False)
    async with running(tested, host):
        client = Client(kind, tested)
        for authorization in BAD:
            await refused(client, authorization)
        assert host.streams == [], "nobody without credentials has so much as a stream"
        for authorization in GOOD:
            await client.send(authorization)
        await eventually(lambda: sum(len(one.events) for one in host.streams) == len(GOOD))
    assert {event for stream in host.streams for event in stream.events} == {b"event"}
    assert TOKEN not in f"{tested.options!r} {[stream.metadata for stream in host.streams]}"


async def test_a_tcp_client_must_send_its_credentials_at_the_start() -> None:
    tested, host = make_connector("tcp-server", {"port": 0, "auth": AUTH}), RecordingHost(has_in=False)
    async with running(tested, host):
        name, _, port = tested.addresses[0].rpartition(":")  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection(name, int(port))
        writer.write(b"x" * (LINE_BYTES_MAX + 1))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), SECONDS_MAX)
        writer.transport.abort()
        await eventually(lambda: host.counts["unauthorized_connections"] == 1)
    assert host.streams == []


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Path]:
    authority = trustme.CA()
    paths = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "listed", "other")}
    authority.cert_pem.write_to_path(paths["ca"])
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(paths["server"])
    for name in ("listed", "other"):
        authority.issue_cert(f"{name}.example").private_key_and_cert_chain_pem.write_to_path(paths[name])
    return paths


@pytest.mark.parametrize("kind", KINDS)
async def test_only_a_client_with_a_listed_certificate_stores_events(kind: str, tls: dict[str, Path]) -> None:
    config = {"tls": {"cert": str(tls["server"]), "client_ca": str(tls["ca"])}, "auth": {"names": ["listed.example"]}}
    tested, host = make_connector(kind, {"port": 0, **config}), RecordingHost(has_in=False)
    contexts = {name: ssl.create_default_context(cafile=tls["ca"]) for name in ("listed", "other")}
    for name, context in contexts.items():
        context.load_cert_chain(tls[name])
    async with running(tested, host):
        await refused(Client(kind, tested, contexts["other"]), "")
        await eventually(lambda: host.counts["unauthorized_connections"] == 1)
        assert host.streams == []
        await Client(kind, tested, contexts["listed"]).send("")
        await eventually(lambda: host.streams and host.streams[0].events)


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_certificates_need_an_authority(kind: str) -> None:
    with pytest.raises(RequestError, match="client_ca"):
        make_connector(kind, {"port": 0, "auth": {"names": ["a"]}})


@pytest.mark.parametrize("auth", [{}, {"bearer": []}, {"bearer": [""]}, {"basic": {"a": ""}}, {"basic": {"": "a"}}])
def test_empty_credentials_are_no_credentials(auth: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ServerAuth"):
        ServerAuth.model_validate(auth)


# Beyond loopback.

OTHERS = ("0.0.0.0", "::", "192.0.2.1", "worker.example", "localhost.example")
SAFE = Permissions(exposed=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_other_machines_reach_needs_tls_and_auth(kind: str, tls: dict[str, Path]) -> None:
    encrypted: dict[str, Any] = {"tls": {"cert": str(tls["server"])}}
    proved: dict[str, Any] = {"auth": AUTH}
    for host in OTHERS:
        for config, missing in [({}, "`tls` and `auth`"), (encrypted, "`auth`"), (proved, "`tls`")]:
            with pytest.raises(NotPermitted, match=f"from other machines and needs {missing}$") as caught:
                make_connector(kind, {"host": host, "port": 0, **config}, SAFE)
            assert "--insecure" in caught.value.hint
        make_connector(kind, {"host": host, "port": 0, **encrypted, **proved}, SAFE)
        make_connector(kind, {"host": host, "port": 0}, Permissions(exposed=True))
    of_clients = {"tls": {"cert": str(tls["server"]), "client_ca": str(tls["ca"])}}
    make_connector(kind, {"host": "0.0.0.0", "port": 0, **of_clients}, SAFE)
    for host in ("127.0.0.1", "::1", "localhost"):
        make_connector(kind, {"host": host, "port": 0}, SAFE)


async def test_a_web_page_may_connect_only_if_it_is_listed() -> None:
    for config, page, is_accepted in [
        ({}, None, True),
        ({}, "https://evil.example", False),
        ({}, "null", False),
        ({"origins": ["https://ours.example"]}, "https://ours.example", True),
        ({"origins": ["https://ours.example"]}, "https://ours.example.evil.example", False),
        ({"origins": ["https://ours.example"]}, None, True),
    ]:
        tested, host = make_connector("ws-server", {"port": 0, **config}), RecordingHost(has_in=False)
        async with running(tested, host):
            url = f"ws://{tested.addresses[0]}/"  # type: ignore[attr-defined]
            headers = {} if page is None else {"Origin": page}
            if is_accepted:
                async with connect(url, additional_headers=headers) as peer:
                    await peer.send("event")
                await eventually(partial(has_events, host))
            else:
                with pytest.raises(InvalidStatus, match="403"):
                    async with connect(url, additional_headers=headers):
                        pass
                assert host.streams == []
