"""Options of `nats`, and what a subject may be."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.sockets import ClientTls
from penstock.connectors.values import Size, SomeSeconds

KEY = "{key}"
"""Stands for the key of a row in the subject of a sink."""

_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_FILTER = re.compile(r"([^\s.*>]+|\*)(\.([^\s.*>]+|\*))*(\.>)?|>")
_NAME = re.compile(r"[^\s.*>/\\]+")
_SERVER = re.compile(r"(nats|tls)://[^\s/@?#]+")


def is_subject(text: str) -> bool:
    """Whether messages can be published to it: no wildcards, no empty parts."""
    return _SUBJECT.fullmatch(text) is not None


def has_wildcards(subject: str) -> bool:
    return not is_subject(subject)


def _server(given: str) -> str:
    if not _SERVER.fullmatch(given):
        raise ValueError("expected nats://HOST:PORT, without a user: credentials are options of their own")
    return given


def _name(given: str) -> str:
    if not _NAME.fullmatch(given):
        raise ValueError("expected the name of a JetStream stream: no spaces, dots, slashes, * or >")
    return given


def _filter(given: str) -> str:
    if given and not _FILTER.fullmatch(given):
        raise ValueError("expected a subject, with * for one part of it and > for all that follow")
    return given


def _subject(given: str) -> str:
    if given and not is_subject(given.replace(KEY, "key")):
        raise ValueError("expected a subject without wildcards; {key} stands for the key of a row")
    return given


class NatsOptions(Options):
    """The source reads a JetStream stream in order, from the position that Penstock has stored itself: it acknowledges
    nothing, and every message becomes one event. The stream must exist, and its retention must be `limits`: a work
    queue would keep what is never acknowledged, so read a mirror of it. A stream that was deleted and created again is
    read from its beginning.

    The sink publishes with a `Nats-Msg-Id` that is the same when a row is published again: the server drops such a
    message within the stream's `duplicate_window`. With `exclusive: true` the sink also finds out, after every failure
    and restart, which rows the subject has, and publishes only the others: exactly once, however long it was away, as
    long as the stream keeps the sink's last message. A row whose key makes no valid subject, or that is with its
    headers larger than the server accepts (`max_payload`), is a dead letter: it goes to the pipeline's port
    `parked.SINK`, with the reason.
    """

    servers: Annotated[list[Annotated[str, AfterValidator(_server)]], Field(min_length=1, max_length=64)]
    """The servers of one cluster, such as `[nats://127.0.0.1:4222]`. One of them is enough."""
    stream: Annotated[str, AfterValidator(_name)]
    """The JetStream stream that is read, or that stores what is published."""
    filter: Annotated[str, AfterValidator(_filter)] = ""
    """For the source: read only messages of this subject, which may have wildcards (`orders.*.new`, `orders.>`). A
    different filter makes it a different stream, which is read from `start`."""
    start: Literal["first", "new"] = "first"
    """Where the source starts if it has stored nothing yet: at the first message that the stream still has, or with
    those that are published from now on."""
    on_removed: Literal["fail", "continue"] = "fail"
    """What to do if the server has removed messages (age, size, purge) before they were read. `fail`: read nothing
    until somebody sets `continue`, which logs a warning, counts them in `removed_messages` and reads the rest. With a
    `filter` it is not known whether they matched: the source always logs a warning, counts them in `perhaps_removed`
    and continues."""
    event_time: Literal["server", "arrival"] = "server"
    """The event time of a message: when the server stored it, or when it arrived here."""
    subject: Annotated[str, AfterValidator(_subject)] = ""
    """For the sink: where rows are published, such as `results` or `results.{key}`. Without it there is no port `in`.
    """
    exclusive: bool = False
    """Declares that nothing else publishes to the sink's subject, which must then be without `{key}`: exactly once. If
    another message is found there, the sink stops."""
    fetch_messages: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """The most messages that the source requests at once."""
    fetch_bytes: Size = 8 << 20
    """The most bytes that it requests at once. A message must fit."""
    credentials: Path | None = None
    """A file with a user's JWT and key, as `nsc` writes it (`.creds`)."""
    token: str = Field(default="", repr=False)
    """A token, such as `${file:/run/secrets/nats}`."""
    user: str = ""
    """A user, with `password`."""
    password: str = Field(default="", repr=False)
    """The user's password, such as `${NATS_PASSWORD}`."""
    tls: ClientTls | None = None
    """Encrypt the connection. `{}` trusts the system's authorities."""
    timeout: SomeSeconds = 10.0
    """For connecting, for each request to the server, and for its acknowledgement of what was published."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        ways = [name for name in ("credentials", "token", "user") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"choose one of {' and '.join(ways)}")
        if self.exclusive and (not self.subject or KEY in self.subject):
            raise ValueError("exclusive needs one subject: set subject, without {key}")
        return self
