"""Access, TLS, broken connections and the life of transactions, at the controller's port."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from penstock.access.file import AccessFile, StoredGrant
from penstock.ingest.settings import ProgramServerSettings
from penstock.pravega.settings import ControllerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.testing.running_worker import RunningWorker
from penstock.worker.settings import WorkerSettings
from tests.pravega.conftest import Client, Controller, start, stop
from tests.pravega.test_client import assert_in_order
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ports import free_port
from tests.support.running_worker import SMALL_STORE
from tests.support.waiting import SECONDS_MAX, until

pytestmark = pytest.mark.process

TXN = {"streamInfo": {"scope": "sc", "stream": "s"}}


@contextmanager
def worker(data: Path, controller: ControllerSettings, access: Any = None, port: int = 0) -> Iterator[RunningWorker]:
    own = {} if access is None else {"access": access}
    settings = WorkerSettings(
        data=data,
        http_port=0,
        store=SMALL_STORE,
        segment=ServerSettings(port=port),
        programs=ProgramServerSettings(port=0),
        controller=controller,
        **own,
    )
    running = RunningWorker(settings)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def code(controller: Controller, method: str, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        controller.call(method, **fields)
    found: grpc.StatusCode = refused.value.code()
    return found


def test_a_principal_does_what_its_role_and_prefixes_allow(tmp_path: Path) -> None:
    access = AccessFile(tmp_path)
    writer = access.add(StoredGrant("writer", "write", ["mine/"], quota_bytes=1024))
    reader = access.add(StoredGrant("reader", "read"))
    with worker(tmp_path / "data", ControllerSettings(), access) as running:
        port = running.ports["controller"]
        controllers = [Controller(port, token) for token in (writer, reader, "wrong")]
        writing, reading, nobody = controllers
        assert writing.call("createScope", scope="mine").status == 0
        assert code(writing, "createScope", scope="other") is grpc.StatusCode.PERMISSION_DENIED
        assert code(reading, "createScope", scope="other") is grpc.StatusCode.PERMISSION_DENIED
        assert [*reading.call("listScopes").scopes] == ["mine"]
        assert code(nobody, "listScopes") is grpc.StatusCode.UNAUTHENTICATED
        stream = {"streamInfo": {"scope": "mine", "stream": "s"}, "scalingPolicy": {"minNumSegments": 101}}
        too_many = stream | {"scalingPolicy": {"minNumSegments": 102}}
        assert code(writing, "createStream", **too_many) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert writing.call("createStream", **stream).status == 0
        assert code(writing, "createTransaction", streamInfo=stream["streamInfo"]) is grpc.StatusCode.RESOURCE_EXHAUSTED
        token = reading.call("getDelegationToken", scope="mine", stream="s").delegationToken
        assert token.count(".") == 2
        assert code(reading, "getCurrentSegments", scope="mine", stream="none") is grpc.StatusCode.NOT_FOUND
        for one in controllers:
            one.close()


def test_a_transaction_that_nobody_pings_is_aborted(tmp_path: Path) -> None:
    with worker(tmp_path / "data", ControllerSettings(sweep_seconds=0.01)) as running:
        controller = Controller(running.ports["controller"], "")
        controller.call("createScope", scope="sc")
        controller.call("createStream", **TXN)
        short = controller.call("createTransaction", **TXN, lease=10).txnId
        long = controller.call("createTransaction", **TXN, lease=600_000).txnId
        assert short.lowBits >= 0
        until(lambda: controller.call("checkTransactionState", **TXN, txnId=short).state == 5)
        assert controller.call("checkTransactionState", **TXN, txnId=long).state == 1
        assert controller.call("pingTransaction", **TXN, txnId=short, lease=10).status == 6
        assert controller.call("pingTransaction", **TXN, txnId=long, lease=10**12).status == 1
        assert controller.call("pingTransaction", **TXN, txnId=long, lease=600_000).status == 0
        for _ in range(2):  # the reply to the first may have been lost
            assert controller.call("commitTransaction", **TXN, txnId=long).status == 0
        assert controller.call("abortTransaction", **TXN, txnId=long).status == 3
        controller.close()


def test_connections_beyond_the_limit_are_closed_and_garbage_harms_nobody(tmp_path: Path) -> None:
    settings = b"\0\0\0\4\0\0\0\0\0"
    with worker(tmp_path / "data", ControllerSettings(connections_max=3)) as running, ExitStack() as stack:
        port = running.ports["controller"]
        replies = []
        for _ in range(5):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX))
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
            replies.append(bool(received(peer)))
        assert replies == [True] * 3 + [False] * 2
        stack.close()
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as peer:
            peer.sendall(b"\xff" * 1000)
            while received(peer):
                pass
        controller = Controller(port, "")
        assert controller.call("createScope", scope="sc").status == 0
        controller.close()


def received(peer: socket.socket) -> bytes:
    """Nothing if it was closed."""
    try:
        return peer.recv(1 << 16)
    except ConnectionResetError:  # with bytes of ours that nobody has read
        return b""


async def test_connections_that_break_lose_and_repeat_nothing(tmp_path: Path) -> None:
    port, count = free_port(), 1000
    async with CuttingProxy(port, cuts=12, bytes_max=20_000, seed=5).run() as proxy:
        settings = ControllerSettings(segment_port=proxy.port)
        with worker(tmp_path / "data", settings, port=port) as running:
            client = Client(f"tcp://127.0.0.1:{running.ports['controller']}", "")
            try:
                scope = await asyncio.to_thread(client.new_scope, 2)
                await asyncio.to_thread(client.run, "write", scope, 0, count, 5)
                events = await asyncio.to_thread(client.run, "read", scope, "readers", "r", count)
            finally:
                client.close()
    assert_in_order(events, count)
    assert proxy.cuts_left < 12


def test_tls_and_a_token(tmp_path: Path) -> None:
    authority = trustme.CA()
    trusted = tmp_path / "certs"
    trusted.mkdir()
    authority.cert_pem.write_to_path(str(trusted / "ca.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    cert, key = tmp_path / "worker.pem", tmp_path / "worker.key"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    running = start(tmp_path / "data", "--tls-cert", str(cert), "--tls-key", str(key), "--advertise", "localhost")
    try:
        client = running.client
        client.uri = f"tls://localhost:{running.controller.port}"
        client.more = {"pravega_client_tls_cert_path": str(trusted)}
        scope = client.new_scope(1)
        client.run("write", scope, 0, 100, 3)
        assert_in_order(client.run("read", scope, "readers", "r", 100), 100)
    finally:
        stop(running)
    assert os.environ.get("pravega_client_tls_cert_path") is None  # noqa: SIM112  the client's own name
