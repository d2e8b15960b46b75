"""`unix-server` and `unix-client`: what only sockets in the file system have."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from penstock.connectors.api import Lost, Outgoing
from penstock.connectors.unix_sockets import UnixClient, UnixClientOptions, UnixServer, UnixServerOptions
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually


def server(path: Path, mode: str = "600") -> UnixServer:
    return UnixServer(UnixServerOptions(path=path, mode=mode))


async def test_the_socket_has_its_rights_and_events_the_program_that_sent_them(tmp_path: Path) -> None:
    path, host = tmp_path / "s", RecordingHost()
    async with running(server(path, "660"), host):
        assert path.stat().st_mode & 0o777 == 0o660
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b"x")
        await eventually(lambda: host.streams and host.streams[0].events)
        assert host.streams[0].metadata["pid"] == os.getpid()
        assert host.streams[0].metadata["uid"] == os.getuid()
        writer.close()
        await writer.wait_closed()
        host.drain()
        await eventually(lambda: not path.exists())


async def test_a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(Lost, match="cannot listen on"):
            await server(path).run(RecordingHost())
    async with running(server(path), RecordingHost()):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
    path.write_text("a file")
    with pytest.raises(Lost, match="cannot listen on"):
        await server(path).run(RecordingHost())
    assert path.read_text() == "a file"


async def test_values_are_delivered_when_the_program_has_read_them(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        tested, host = UnixClient(UnixClientOptions(path=tmp_path / "s", format="lines")), RecordingHost(has_out=False)
        async with running(tested, host):
            accepted, _ = listening.accept()
            with accepted:
                sending = asyncio.create_task(tested.deliver(Outgoing(None, [b"a", b"b"], [0, 0]), host))
                _, waiting = await asyncio.wait([sending], timeout=0.1)
                assert waiting, "it has not read anything"
                assert accepted.recv(100) == b"a\nb\n"
                await asyncio.wait_for(sending, SECONDS_MAX)
                sending = asyncio.create_task(tested.deliver(Outgoing(None, [b"c"], [0]), host))
                await asyncio.wait([sending], timeout=0.05)
            with pytest.raises(Lost):
                await asyncio.wait_for(sending, SECONDS_MAX)
