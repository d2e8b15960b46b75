"""`email`: a message for each value, or for several together."""

import asyncio
import html
import json
import re
import ssl
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing, ShownBy, StreamGone
from penstock.connectors.secrets import has_references
from penstock.connectors.sockets import ClientTls, HostName, client_context
from penstock.connectors.unfinished import Unfinished
from penstock.connectors.values import SomeSeconds
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    import aiosmtplib

# Templates: texts with fields of the event. Pure.

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_SUBJECT_CHARS_MAX = 200


def _template(text: str) -> str:
    """Raises ValueError."""
    if has_references(text):  # its value is checked where it is known
        return text
    try:
        parts = [*string.Formatter().parse(text)]
    except ValueError:
        raise ValueError("a brace is not closed: write {field}, and {{ for a brace") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not _FIELD.fullmatch(name)):
            raise ValueError("expected fields like {name} or {user.name}, and {{ for a brace")
    return text


Template = Annotated[str, AfterValidator(_template)]


class Fields(NamedTuple):
    """What templates can use of one event."""

    value: str
    key: str
    parsed: Any
    """The value as JSON; None if it is not."""

    @classmethod
    def of(cls, outgoing: Outgoing, place: int) -> "Fields":
        text = outgoing.values[place].decode(errors="replace")
        key = outgoing.keys[place].decode(errors="replace") if outgoing.keys else ""
        try:
            return cls(text, key, json.loads(text))
        except (ValueError, RecursionError):
            return cls(text, key, None)

    def find(self, path: str) -> str:
        found = self.parsed
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return {"value": self.value, "key": self.key}.get(path, "")
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def rendered(template: str, fields: Fields, *, count: int = 1, is_html: bool = False) -> str:
    """`{count}` is the number of events in the message. Fields that an event does not have are empty."""
    parts = []
    for text, name, _, _ in string.Formatter().parse(template):
        found = "" if name is None else fields.find(name) or (str(count) if name == "count" else "")
        parts += [text, html.escape(found) if is_html else found]
    return "".join(parts)


def one_line(text: str) -> str:
    """For a header: an event must not add headers of its own."""
    return "".join(one if one.isprintable() else " " for one in text)[:_SUBJECT_CHARS_MAX].strip()


class Pace:
    """At most `per_minute` messages in a minute; as many may leave at once after a quiet one. Pure: time is passed."""

    def __init__(self, per_minute: int | None) -> None:
        self._per_minute = per_minute
        self._left, self._since = float(per_minute or 0), 0.0

    def wait(self, now: float) -> float:
        """The seconds until the next message may leave, which is counted."""
        if self._per_minute is None:
            return 0.0
        per_second = self._per_minute / 60
        self._left = min(self._left + max(0.0, now - self._since) * per_second, float(self._per_minute))
        self._since = max(now, self._since)
        self._left -= 1
        return max(0.0, -self._left / per_second)


# The connector.


class Login(Options):
    user: Annotated[str, Field(min_length=1)]
    """The user's name."""
    password: Annotated[str, Field(min_length=1, repr=False)]
    """Take it from the environment or from a file: `${file:/run/secrets/mail}`."""


_FOR_GOOD = 500
"""Replies below it are refusals for now."""

_PORTS = {"starttls": 587, "tls": 465, "off": 25}


class EmailOptions(Options):
    """Texts are templates: `{field}` and `{outer.inner}` are fields of an event that is JSON, `{value}` is the whole
    event, `{key}` its key, `{count}` the number of events in the message, and `{{` is a brace. A field that an event
    does not have is empty.

    A message that the server accepts counts as delivered. It is sent again, with the same Message-ID, if the server
    cannot be reached or answers 4xx; if it does so for some of the recipients, to them alone. A message that it refuses
    for good (5xx), even for one recipient, or whose address is not valid, is a dead letter.
    """

    host: HostName
    """The mail server."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Its port. By default 587, 465 with `encryption: tls`, 25 with `encryption: off`."""
    encryption: Literal["starttls", "tls", "off"] = "starttls"
    """`starttls`: the connection is encrypted before anything is sent. `tls`: from the beginning. `off`: not at all."""
    tls: ClientTls | None = None
    """Authorities and certificates, instead of the system's authorities."""
    login: Login | None = None
    """The account, if the server needs one. Not with `encryption: off`, unless the server is on this machine."""
    sender: Annotated[str, Field(min_length=3)]
    """The address that messages come from: `alerts@example.org`."""
    to: Annotated[tuple[Template, ...], Field(min_length=1, max_length=100)]
    """The addresses that get them; they may contain fields of the event, such as `{user.email}`."""
    subject: Template = "{value}"
    """The subject, cut to 200 characters. With `digest`, its fields are those of the first event."""
    body: Template = "{value}"
    """The text. With `digest`, it is repeated for each event."""
    format: Literal["text", "html"] = "text"
    """`html`: the body is HTML, and fields in it are escaped."""
    digest: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The most events in one message. Only events of the same stream and the same epoch share a message."""
    per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The most messages per minute; others wait. By default there is no limit."""
    timeout: SomeSeconds = 30.0
    """For connecting, and for each reply of the server."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one in (self.sender, *self.to):
            if "{" not in one:
                _address(one)
        if self.digest > 1 and any("{" in one for one in self.to):
            raise ValueError("with a digest the recipients are fixed: events of several would be in one message")
        is_local = self.host in ("localhost", "127.0.0.1", "::1")
        if self.login is not None and self.encryption == "off" and not is_local:
            raise ValueError("a password needs encryption: starttls or tls")
        return self


def _address(text: str) -> Address:
    """One address and nothing else. Raises ValueError."""
    try:
        found = Address(addr_spec=text.strip())
    except Exception:  # the parser of the standard library raises several errors
        raise ValueError("expected an address like name@example.org") from None
    if not found.domain:
        raise ValueError("expected an address like name@example.org")
    return found


@dataclass(slots=True)
class _Progress:
    sent: int = 0
    """Values."""
    refused: list[int] = field(default_factory=list)
    reason: str = ""
    waiting: list[str] = field(default_factory=list)
    """The recipients of the next message whom the server has put off, if there are any: the others are settled …"""
    failures: list[str] = field(default_factory=list)
    """… and these of them are refused for good, with the server's replies."""


class Email(Connector[EmailOptions]):
    """At least once: a message is repeated, with the same Message-ID, if the server's answer was lost, or the worker
    ended before it was recorded.
    """

    about = About(
        "email",
        "Sends e-mail: a message for each event, or for several together.",
        EmailOptions,
        Capabilities(
            sink=Guarantee.AT_LEAST_ONCE,
            on_stream_started="Opens every stream. All are closed while the server cannot be reached.",
        ),
        extra="email",
        example={
            "host": "mail.example.org",
            "login": {"user": "alerts", "password": "${file:/run/secrets/mail}"},
            "sender": "alerts@example.org",
            "to": ["operators@example.org"],
            "subject": "{level}: {service}",
            "body": "{message}",
        },
        shown_by=ShownBy(
            sink="tests/application/test_web_kills.py::test_every_event_leaves_as_a_webhook_and_as_mail_and_repetitions_can_be_recognized",
        ),
    )

    def __init__(self, options: EmailOptions) -> None:
        super().__init__(options)
        self._port = options.port or _PORTS[options.encryption]
        self._where = f"{options.host}:{self._port}"
        self._progress = Unfinished(_Progress)
        self._pace = Pace(options.per_minute)
        self._client: aiosmtplib.SMTP | None = None
        """A connection that the last delivery has left open, for the next one."""

    async def run(self, host: Host) -> None:
        try:
            host.connected()
            await asyncio.Event().wait()  # accepted events leave after a drain: until it is cancelled
        finally:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        progress = self._progress.take(outgoing.name)
        try:
            await self._deliver(outgoing, progress, host)
        except Exception:
            self._progress.keep(outgoing.name, progress)
            raise
        if progress.refused:
            raise StreamGone(progress.reason, places=progress.refused)

    async def _deliver(self, outgoing: Outgoing, progress: _Progress, host: Host) -> None:
        client = await self._connected()
        try:
            for places in _groups(len(outgoing.values), self.options.digest):
                if places.start < progress.sent:
                    continue
                if (reason := await self._send(client, outgoing, places, progress)) is not None:
                    host.count("refused_values", len(places))
                    progress.refused += places
                    progress.reason = progress.reason or reason
                progress.sent = places.stop
        except BaseException:
            client.close()  # whatever state it is in
            raise
        self._client = client

    async def _connected(self) -> "aiosmtplib.SMTP":
        """The open connection, if the server has not closed it, or a new one. Raises Lost."""
        import aiosmtplib

        client, self._client = self._client, None
        if client is not None:
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.noop()
                return client
            client.close()
        return await self._connect()

    async def _connect(self) -> "aiosmtplib.SMTP":
        import aiosmtplib

        options = self.options
        context = client_context(options.tls) or ssl.create_default_context()
        client = aiosmtplib.SMTP(
            hostname=options.host,
            port=self._port,
            timeout=options.timeout,
            tls_context=context if options.encryption != "off" else None,
            username=None if options.login is None else options.login.user,
            password=None if options.login is None else options.login.password,
            use_tls=options.encryption == "tls",
            start_tls=options.encryption == "starttls",
        )
        try:
            await client.connect()
        except (aiosmtplib.SMTPException, OSError) as error:
            client.close()
            raise Lost(f"{self._where} cannot be used: {_text(error)}") from None
        return client

    async def _send(
        self, client: "aiosmtplib.SMTP", outgoing: Outgoing, places: range, progress: _Progress
    ) -> str | None:
        """Returns why the message was refused for good, by any recipient. Raises Lost."""
        import aiosmtplib

        try:
            message = self._message(outgoing, places)
        except ValueError as error:
            return f"the message cannot be sent: {error}"
        await asyncio.sleep(self._pace.wait(time.monotonic()))
        try:
            refused, _ = await client.send_message(message, recipients=progress.waiting or None)
        except aiosmtplib.SMTPRecipientsRefused as error:
            replies = [(one.recipient, one.code, one.message) for one in error.recipients]
        except aiosmtplib.SMTPResponseException as error:
            reason = f"{self._where} replied {_text(error)}"
            if error.code < _FOR_GOOD:
                raise Lost(reason) from None
            return self._settled(progress, [reason])
        except aiosmtplib.SMTPNotSupported as error:
            return self._settled(progress, [f"{self._where} cannot take it: {_text(error)}"])
        except (aiosmtplib.SMTPException, OSError) as error:
            raise Lost(f"{self._where}: {_text(error)}") from None
        else:
            replies = [(address, one.code, one.message) for address, one in refused.items()]
        return self._recorded(progress, replies)

    def _recorded(self, progress: _Progress, replies: Sequence[tuple[str, int, str]]) -> str | None:
        """The message is sent again to recipients who are refused for now, and to no others: then it raises Lost."""
        shown = {address: one_line(f"{address}: {code} {text}") for address, code, text in replies}
        later = [address for address, code, _ in replies if code < _FOR_GOOD]
        progress.failures += [text for address, text in shown.items() if address not in later]
        if later:
            progress.waiting = later
            raise Lost(f"{self._where} replied {', '.join(shown[address] for address in later)}")
        if not progress.failures:
            return self._settled(progress, [])
        others = "; the other recipients have received it" if len(progress.failures) < len(self.options.to) else ""
        return self._settled(progress, [f"{self._where} has refused {', '.join(progress.failures)}{others}"])

    def _settled(self, progress: _Progress, reasons: Sequence[str]) -> str | None:
        progress.waiting, progress.failures = [], []
        return "; ".join(reasons) or None

    def _message(self, outgoing: Outgoing, places: range) -> EmailMessage:
        """Raises ValueError if an address is not valid."""
        options, events = self.options, [Fields.of(outgoing, place) for place in places]
        message = EmailMessage(policy=SMTP)
        message["From"] = options.sender
        message["To"] = [_address(rendered(one, events[0])) for one in options.to]
        message["Subject"] = one_line(rendered(options.subject, events[0], count=len(events)))
        message["Date"] = format_datetime(datetime.now(UTC))
        message["Message-ID"] = self._message_id(outgoing, places)
        message["Auto-Submitted"] = "auto-generated"
        is_html = options.format == "html"
        texts = [rendered(options.body, one, count=len(events), is_html=is_html) for one in events]
        message.set_content(("<hr>\n" if is_html else "\n").join(texts), subtype="html" if is_html else "plain")
        return message

    def _message_id(self, outgoing: Outgoing, places: range) -> str:
        """The same when it is sent again: an event is identified by its distance from the end of the delivery."""
        name = f"{outgoing.name}-{len(outgoing.values) - places.stop}"
        return f"<{sha256(name.encode()).hexdigest()[:40]}@{_address(self.options.sender).domain}>"


def _groups(count: int, size: int) -> Iterator[range]:
    """Counted from the end, which is the same when a delivery is repeated."""
    first = count % size
    if first:
        yield range(first)
    for start in range(first, count, size):
        yield range(start, start + size)


def _text(error: BaseException) -> str:
    code, message = getattr(error, "code", None), getattr(error, "message", "") or str(error)
    return one_line(f"{code} {message}" if code is not None else message) or type(error).__name__
