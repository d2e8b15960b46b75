"""`syslog`: messages of RFC 6587's framings over real connections and datagrams."""

import asyncio
import logging.handlers
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.connectors.syslog import BadFrame, Frames, Framing, Syslog, SyslogOptions
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import eventually

MESSAGES = [b"<34>1 2026-01-31T10:00:00Z host app - ID47 - first", b"<13>Jan 31 10:00:00 host app: second", b"<0>x"]


def counted(messages: list[bytes]) -> bytes:
    return b"".join(b"%d %s" % (len(message), message) for message in messages)


def in_lines(messages: list[bytes]) -> bytes:
    return b"".join(message + b"\n" for message in messages)


def cut(framing: Framing, data: bytes, sizes: list[int]) -> list[bytes]:
    frames, found, at = Frames(framing, 1000), [], 0
    for size in [*sizes, len(data)]:
        found += frames.feed(data[at : at + size])
        at += size
    return [*found, *([last] if (last := frames.finish()) else [])]


@given(
    messages=st.lists(st.binary(min_size=1, max_size=20).map(lambda tail: b"<1>" + tail.translate(None, b"\n\r\0"))),
    sizes=st.lists(st.integers(1, 9)),
)
def test_both_framings_give_the_messages_back_wherever_they_are_cut(messages: list[bytes], sizes: list[int]) -> None:
    assert cut("auto", counted(messages), sizes) == messages
    assert cut("octet-counting", counted(messages), sizes) == messages
    assert cut("auto", in_lines(messages), sizes) == messages
    assert cut("auto", in_lines(messages)[:-1], sizes) == messages


def test_a_connection_may_mix_them() -> None:
    assert cut("auto", in_lines(MESSAGES[:1]) + counted(MESSAGES[1:]), []) == MESSAGES


def test_with_lines_a_digit_is_not_a_length() -> None:
    assert cut("lines", b"12 o'clock\n", []) == [b"12 o'clock"]


@pytest.mark.parametrize(
    ("framing", "data", "rest", "reason"),
    [
        ("auto", b"<1>a\n1001 x", b"1001 x", "message_bytes_max"),
        ("auto", b"<1>a\n<" + b"x" * 1001, b"<" + b"x" * 1001, "message_bytes_max"),
        ("auto", b"<1>a\n12x", b"12x", "its length and a blank"),
        ("octet-counting", b"4 <1>a<1>b\n", b"<1>b\n", "its length and a blank"),
        ("auto", b"<1>a\n12345678901234567890", b"12345678901234567890", "its length and a blank"),
    ],
)
def test_what_is_not_a_frame_is_refused_and_what_was_before_it_is_kept(
    framing: Framing, data: bytes, rest: bytes, reason: str
) -> None:
    with pytest.raises(BadFrame, match=reason) as bad:
        Frames(framing, 1000).feed(data)
    assert (bad.value.records, bad.value.data) == ([b"<1>a"], rest)


def test_half_a_counted_message_is_not_one() -> None:
    with pytest.raises(BadFrame, match="in the middle"):
        cut("auto", counted(MESSAGES)[:-1], [])


async def test_the_standard_library_s_handler_is_understood_over_udp_and_tcp() -> None:
    tested, host = Syslog(SyslogOptions(port=0)), RecordingHost()
    async with running(tested, host):
        where, _, port = tested.addresses[0].rpartition(":")
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            handler = logging.handlers.SysLogHandler((where, int(port)), socktype=kind)
            handler.append_nul = False
            handler.emit(logging.makeLogRecord({"msg": "disk full", "levelno": logging.ERROR, "levelname": "ERROR"}))
            handler.close()
        await eventually(lambda: len(host.streams) == 2 and all(stream.events for stream in host.streams))
    assert [stream.events for stream in host.streams] == [[b"<11>disk full"]] * 2
    assert host.streams[1].metadata["peer"].startswith("127.0.0.1:")


async def test_connections_are_encrypted_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = {"port": 0, "transport": "tcp", "tls": {"cert": str(tmp_path / "server.pem")}}
    tested, host = Syslog(SyslogOptions.model_validate(options)), RecordingHost()
    async with running(tested, host):
        where, _, port = tested.addresses[0].rpartition(":")
        _, writer = await asyncio.open_connection(where, int(port), ssl=context)
        writer.write(counted(MESSAGES))
        await eventually(lambda: host.streams and host.streams[0].events == MESSAGES)
        writer.close()
        await writer.wait_closed()


def test_datagrams_cannot_be_encrypted_nor_reach_a_careful_worker() -> None:
    with pytest.raises(ValidationError, match="transport: tcp"):
        SyslogOptions.model_validate({"port": 0, "tls": {"cert": "a.pem"}})
    with pytest.raises(NotPermitted, match="reachable from other machines"):
        make_connector("syslog", {"host": "0.0.0.0", "port": 0}, Permissions(exposed=False))
