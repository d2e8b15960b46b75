"""The options of `redis`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from penstock.connectors.api import Options
from penstock.connectors.sockets import ClientTls
from penstock.connectors.values import SomeSeconds, without_port

_OF_SOURCE = ("group", "start", "timestamps", "trim", "when_deleted", "batch_max")
_OF_SINK = ("key_field", "maxlen", "exact_maxlen", "when_lost")


class RedisOptions(Options):
    """With `streams` it is a source, with `stream` a sink; a connector can be both. It connects to one server, not to a
    Redis Cluster.

    As a source, each Redis stream is a stream. The id of an event is that of the entry, `MILLISECONDS-SEQUENCE`, as
    MILLISECONDS × 2^20 + SEQUENCE; reading continues after the last stored event. An entry without the field `field`,
    or with a sequence number of 2^20 or more, is a dead letter. The other fields of an entry are the event's metadata.
    Entries that were deleted before they were read stop the source, or are one dead letter (`when_deleted`). They are
    noticed while it reads, and, when it starts, if nothing after the last stored event is left, or XDEL has deleted
    such an entry. If XTRIM or MAXLEN has deleted the last stored event itself while the source was away, Redis does
    not report whether unread entries followed it: then there is a dead letter that says so, and the source continues.
    Redis before version 7 counts nothing: while the source reads, it notices only if no entry is left.

    As a sink, a script writes up to 2,000 rows at a time, together with a mark of the sink's progress in the key
    `STREAM:penstock:PIPELINE/SINK`: rows that are there already are not written again. Redis must not lose what it has
    acknowledged when it crashes: set `appendonly yes` and `appendfsync always`. Let no other
    program write to the stream: otherwise rows can be repeated if the server is killed while it writes them to disk.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 6379
    """Its port."""
    unix_socket: Path | None = None
    """The path of its socket, instead of host and port."""
    db: Annotated[int, Field(ge=0)] = 0
    """The number of the database."""
    username: str = ""
    """The user, if the server has several."""
    password: SecretStr | None = None
    """Write a reference, such as `${REDIS_PASSWORD}` or `${file:/run/secrets/redis}`."""
    tls: ClientTls | None = None
    """Encrypt the connection. `{}` trusts the system's authorities."""
    timeout: SomeSeconds = 10.0
    """For connecting, and for each answer."""
    streams: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The keys of the Redis streams to read."""
    stream: str = ""
    """The key of the Redis stream to write to."""
    field: Annotated[str, Field(min_length=1)] | None = "value"
    """The field of an entry with the event's value. `null`, only for a source: the value is a JSON object of all
    fields."""
    group: str = ""
    """Set the position of this consumer group when epochs complete, so that other tools can show it. The group is
    created if it does not exist. It is not used for reading."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to start in a stream from which the worker has stored nothing."""
    timestamps: bool = True
    """Whether the milliseconds of an entry's id are its event's time. Otherwise it is the time of arrival."""
    trim: bool = False
    """Delete entries from Redis when their epoch is complete, except the last of these. Use it only if nothing else
    reads them."""
    when_deleted: Literal["fail", "skip"] = "fail"
    """If entries were deleted before they were read: `fail` stops the connector; `skip` continues with those that are
    there, with one dead letter for those that are not."""
    batch_max: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """How many entries of a stream are read at once."""
    key_field: str = "key"
    """The field for an event's key; empty: keys are not written. Events without a key have no such field."""
    maxlen: Annotated[int, Field(ge=1)] | None = None
    """Trim the stream to this number of entries when writing."""
    exact_maxlen: bool = False
    """Trim to exactly `maxlen`, which is slower; otherwise to a little more."""
    when_lost: Literal["fail", "continue"] = "fail"
    """If Redis has lost the sink's mark, and so perhaps what was written before: `fail` stops the sink; `continue`
    continues with the current epoch."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        if not self.streams and not self.stream:
            yield "set `streams` to read, or `stream` to write to"
        yield from without_port(self, "streams", "source", _OF_SOURCE)
        yield from without_port(self, "stream", "sink", _OF_SINK)
        if self.stream and self.field is None:
            yield "a sink needs a `field` for the value"
        if self.exact_maxlen and self.maxlen is None:
            yield "exact_maxlen needs a maxlen"
        if self.tls is not None and self.tls.server_name:
            yield "tls.server_name is not supported here: use the name in the certificate as the host"

    @property
    def place(self) -> str:
        """For display."""
        return str(self.unix_socket) if self.unix_socket is not None else f"{self.host}:{self.port}"
