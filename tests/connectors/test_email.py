"""`email` against a real mail server."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.api import Lost, StreamGone
from penstock.connectors.email import Fields, Pace, _groups, one_line, rendered
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from tests.connectors.mail_server import MailServer
from tests.connectors.real_host import Hosted, hosting

GIVEN = {"host": "127.0.0.1", "encryption": "off", "sender": "alerts@example.org", "to": ["me@example.org"]}


@asynccontextmanager
async def sending(folder: Path, server: MailServer, **config: Any) -> AsyncIterator[Hosted]:
    given = {**GIVEN, "port": server.port, **config}
    async with hosting(folder, "email", given, has_in=True, has_out=False) as hosted:
        await hosted.connected()
        yield hosted


async def test_each_event_is_a_message_made_from_its_fields(tmp_path: Path) -> None:
    texts = {"subject": "{level}: {host.name}", "body": "Said {{so}}: {text}{missing} ({host.up})", "to": ["{who}"]}
    with MailServer() as server:
        async with sending(tmp_path, server, **texts) as hosted:
            value = '{"level": "Fehler", "host": {"name": "ä1", "up": 3}, "text": "höher", "who": "you@example.org"}'
            await hosted.deliver([value.encode()], [1], 5)
    (message,) = server.messages
    assert (message["To"], message["From"]) == ("you@example.org", "alerts@example.org")
    assert message["Subject"] == "Fehler: ä1"
    assert message.get_content() == "Said {so}: höher (3)\n"
    assert message["Auto-Submitted"] == "auto-generated"


async def test_a_message_id_is_the_same_when_it_is_sent_again_and_another_for_each_event(tmp_path: Path) -> None:
    with MailServer() as server:
        for _ in range(2):
            async with sending(tmp_path, server) as hosted:
                await hosted.deliver([b"one", b"two"], [1, 2], 5, "p:1:3/9")
        async with sending(tmp_path, server) as hosted:  # it starts later this time
            await hosted.deliver([b"two"], [2], 5, "p:1:3/9")
    ids = [message["Message-ID"] for message in server.messages]
    assert ids == [ids[0], ids[1], ids[0], ids[1], ids[1]]
    assert ids[0] != ids[1]
    assert ids[0].endswith("@example.org>")


async def test_what_was_sent_before_a_failure_is_not_sent_again_by_the_same_process(tmp_path: Path) -> None:
    with MailServer() as server:
        server.answers = [None, "451 try later"]
        async with sending(tmp_path, server) as hosted:
            with pytest.raises(Lost, match="451 try later"):
                await hosted.deliver([b"one", b"two"], [1, 2], 5)
            await hosted.deliver([b"one", b"two"], [1, 2], 5)
    assert [message.get_content() for message in server.messages] == ["one\n", "two\n"]


async def test_a_message_that_is_refused_for_good_is_a_dead_letter_and_the_others_are_sent(tmp_path: Path) -> None:
    with MailServer() as server:
        server.answers = [None, "554 no such thing"]
        async with sending(tmp_path, server) as hosted:
            with pytest.raises(StreamGone, match="554 no such thing") as raised:
                await hosted.deliver([b"one", b"two", b"three"], [1, 2, 3], 5)
    assert raised.value.places == [1]
    assert [message.get_content() for message in server.messages] == ["one\n", "three\n"]


A, B, C = "a@example.org", "b@example.org", "c@example.org"


async def test_recipients_whom_the_server_puts_off_get_the_message_later_and_the_others_once(tmp_path: Path) -> None:
    with MailServer() as server:
        server.answers_to = {B: ["451 greylisted", "450 still"]}
        async with sending(tmp_path, server, to=[A, B, C]) as hosted:
            for reason in ("451 greylisted", "450 still"):
                with pytest.raises(Lost, match=rf"b@example\.org: {reason}"):
                    await hosted.deliver([b"one", b"two"], [1, 2], 5)
            await hosted.deliver([b"one", b"two"], [1, 2], 5)
    assert server.recipients == [[A, C], [B], [A, B, C]]
    first, again, _ = server.messages
    assert (first["Message-ID"], first["To"]) == (again["Message-ID"], again["To"])


async def test_a_recipient_who_is_refused_for_good_is_known_after_others_were_put_off(tmp_path: Path) -> None:
    with MailServer() as server:
        server.answers_to = {A: ["550 unknown"], B: ["451 later"]}
        async with sending(tmp_path, server, to=[A, B, C]) as hosted:
            with pytest.raises(Lost, match=r"b@example\.org: 451 later"):
                await hosted.deliver([b"one", b"two"], [1, 2], 5)
            with pytest.raises(StreamGone, match=r"a@example\.org: 550 unknown; the other recipients") as raised:
                await hosted.deliver([b"one", b"two"], [1, 2], 5)
    assert raised.value.places == [0]
    assert server.recipients == [[C], [B], [A, B, C]]


async def test_a_message_that_all_recipients_refuse_was_received_by_none(tmp_path: Path) -> None:
    with MailServer() as server:
        server.answers_to = {A: ["550 unknown"], B: ["551 moved"]}
        async with sending(tmp_path, server, to=[A, B]) as hosted:
            with pytest.raises(StreamGone, match=r"550 unknown, b@example\.org: 551 moved$"):
                await hosted.deliver([b"one"], [1], 5)
    assert server.recipients == []


@pytest.mark.parametrize("address", ["", "nobody", "a@b.org, c@d.org", "a@b.org\nBcc: c@d.org", "<a@b.org>x"])
async def test_an_event_cannot_add_recipients(tmp_path: Path, address: str) -> None:
    with MailServer() as server:
        async with sending(tmp_path, server, to=["{value}"]) as hosted:
            with pytest.raises(StreamGone, match="address"):
                await hosted.deliver([address.encode()], [1], 5)
    assert server.messages == []


async def test_an_event_cannot_add_headers(tmp_path: Path) -> None:
    with MailServer() as server:
        async with sending(tmp_path, server) as hosted:
            await hosted.deliver([b"subject\r\nBcc: c@d.org\r\n\r\nbody"], [1], 5)
    (message,) = server.messages
    assert message["Bcc"] is None
    assert message["Subject"] == "subject  Bcc: c@d.org    body"


async def test_a_digest_has_several_events_in_one_message(tmp_path: Path) -> None:
    with MailServer() as server:
        async with sending(tmp_path, server, digest=3, subject="{count} from {value}") as hosted:
            await hosted.deliver([b"%d" % number for number in range(7)], [*range(1, 8)], 5)
    assert [message["Subject"] for message in server.messages] == ["1 from 0", "3 from 1", "3 from 4"]
    assert [message.get_content().split() for message in server.messages] == [["0"], ["1", "2", "3"], ["4", "5", "6"]]


async def test_html_is_sent_with_fields_escaped(tmp_path: Path) -> None:
    with MailServer() as server:
        async with sending(tmp_path, server, format="html", body="<b>{value}</b>") as hosted:
            await hosted.deliver([b"<script>"], [1], 5)
    (message,) = server.messages
    assert message.get_content_type() == "text/html"
    assert message.get_content() == "<b>&lt;script&gt;</b>\n"


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # it does not see TLS around SMTP
@pytest.mark.parametrize("encryption", ["starttls", "tls"])
async def test_the_connection_is_encrypted_and_logs_in(tmp_path: Path, encryption: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    login = {"user": "me", "password": "s3cret"}
    with MailServer(context, is_tls=encryption == "tls", login=login) as server:
        more = {"encryption": encryption, "tls": {"ca": str(tmp_path / "ca.pem")}}
        async with sending(tmp_path / "a", server, login=login, **more) as hosted:
            await hosted.deliver([b"hidden"], [1], 5)
        assert len(server.messages) == 1
        async with sending(tmp_path / "b", server, login=login | {"password": "wrong"}, **more) as hosted:
            with pytest.raises(Lost, match="535"):
                await hosted.deliver([b"hidden"], [1], 5)
        async with sending(tmp_path / "c", server, login=login, encryption=encryption) as hosted:
            with pytest.raises(Lost, match="cannot be used"):  # an authority that the system does not know
                await hosted.deliver([b"hidden"], [1], 5)
    assert len(server.messages) == 1


async def test_a_server_that_is_down_gets_the_message_when_it_is_back(tmp_path: Path) -> None:
    with MailServer() as server:
        port = server.port
    async with sending(tmp_path, server) as hosted:
        with pytest.raises(Lost, match=f"127.0.0.1:{port} cannot be used"):
            await hosted.deliver([b"one"], [1], 5)
        with MailServer(port=port) as server:
            await hosted.deliver([b"one"], [1], 5)
            assert len(server.messages) == 1


def test_at_most_so_many_messages_leave_in_a_minute() -> None:
    pace = Pace(60)
    assert [pace.wait(100.0) for _ in range(62)] == [0.0] * 60 + [pytest.approx(1.0), pytest.approx(2.0)]
    assert pace.wait(103.0) == pytest.approx(0.0)
    assert Pace(None).wait(0.0) == 0.0


@given(count=st.integers(1, 50), size=st.integers(1, 10), less=st.integers(0, 49))
def test_the_messages_of_a_digest_are_the_same_when_a_delivery_starts_later(count: int, size: int, less: int) -> None:
    groups = [*_groups(count, size)]
    assert [place for group in groups for place in group] == [*range(count)]
    assert all(len(group) <= size for group in groups)
    later = {max(1, count - less) - group.stop for group in _groups(max(1, count - less), size)}
    assert later <= {count - group.stop for group in groups}


@given(st.text())
def test_a_header_is_one_line_whatever_an_event_contains(text: str) -> None:
    assert one_line(text).isprintable()


def test_fields_of_an_event_that_is_not_an_object_are_empty() -> None:
    fields = Fields("[1]", "k", [1])
    assert rendered("{a.b}|{value}|{key}|{count}", fields, count=2) == "|[1]|k|2"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"subject": "{"}, "subject: .*brace"),
        ({"subject": "{a!r}"}, "fields like"),
        ({"subject": "{a:>10}"}, "fields like"),
        ({"body": "{0.__class__}"}, "fields like"),
        ({"to": []}, "to"),
        ({"to": ["nobody"]}, "name@example.org"),
        ({"sender": "a@b.org, c@d.org"}, "name@example.org"),
        ({"host": "mail.example.org", "login": {"user": "a", "password": "b"}}, "encryption"),
    ],
)
def test_invalid_options_are_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        make_connector("email", {**GIVEN, **config})
