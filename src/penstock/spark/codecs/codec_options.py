"""The options of Penstock's own codecs: `codec_config` of a connector. Nothing here needs Spark or Arrow."""

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.secrets import has_references

_Character = Annotated[str, Field(pattern=r"^[\x01-\x7f]$")]
"""Arrow's reader of CSV takes a delimiter and a quote of one byte."""


class CsvOptions(Options):
    delimiter: _Character = ","
    r"""Stands between fields: `;`, or a tab (`"\t"`). It is one ASCII character."""
    quote: _Character | Literal[""] = '"'
    """Stands around a field that contains a delimiter, a quote or a line end; twice inside of one. It is one ASCII
    character. Empty: there are no quotes, and `"` is a character like any other."""
    escape: _Character | Literal[""] = ""
    r"""Stands before a delimiter or a quote that is part of a field, and before itself: `"\\"`. It is one ASCII
    character. Two quotes are still one as well. By default there is none."""
    null: str = ""
    """The text, without quotes, that stands for null. Where there are no quotes, an empty text is written like null if
    that is empty."""

    @model_validator(mode="after")
    def _are_distinct(self) -> "CsvOptions":
        used = [one for one in (self.delimiter, self.quote, self.escape) if one]
        if len({*used}) < len(used) or {*used} & {"\n", "\r"}:
            raise ValueError("the delimiter, the quote and the escape are different characters, and not line ends")
        if self.escape and self.escape in self.null:
            raise ValueError("the text for null cannot contain the escape")
        return self


class ArrowOptions(Options):
    form: Literal["stream", "file"] = "stream"
    """How rows are written. Both are read."""


def _reference(text: str) -> str:
    if not has_references(text):
        raise ValueError("write a reference, ${NAME} or ${file:PATH}: the options of codecs are stored and shown")
    return text


_LateSecret = Annotated[str, AfterValidator(_reference)]
"""Stays a reference until a task uses it."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AvroOptions(Options):
    """Without a registry an event is the value alone, without a header: it needs a schema here."""

    avro_schema: str | None = None
    """The schema of events, as JSON text; `${file:order.avsc}` reads it from a file. With a registry it is the reader's
    schema: what was written with others is resolved to it."""
    registry: str | None = None
    """The address of a Confluent-style schema registry: events begin with the number of their schema there. What its
    answers are is not decided by bytes: while it cannot be reached, tasks fail and are tried again."""
    registry_user: str | None = Field(default=None, pattern=r"^[^:\x00-\x1f]+$")
    """The user, or the name of the API key, for a registry with HTTP basic authentication."""
    registry_password: _LateSecret | None = None
    """Its password, as `${NAME}` or `${file:PATH}`: Spark's tasks find the value where they run."""
    registry_token: _LateSecret | None = None
    """A bearer token instead of a user, as such a reference."""
    registry_ca: str | None = None
    """A PEM file with the authorities of the registry's certificate, instead of the system's, where Spark's tasks
    run."""
    subject: str | None = None
    """The subject under which the registry has the schema of the rows that are written."""

    resolved_by_tasks: ClassVar[frozenset[str]] = frozenset({"registry_password", "registry_token"})

    @model_validator(mode="after")
    def _has_a_schema(self) -> "AvroOptions":
        if self.avro_schema is None and self.registry is None:
            raise ValueError("it needs avro_schema, or the address of a registry")
        return self

    @model_validator(mode="after")
    def _has_credentials(self) -> "AvroOptions":
        has_any = not (self.registry_user is self.registry_token is self.registry_ca is None)
        if self.registry is None:
            if has_any or self.registry_password is not None:
                raise ValueError("credentials and authorities are those of a registry: add its address")
            return self
        if (self.registry_user is None) != (self.registry_password is None):
            raise ValueError("registry_user and registry_password belong together")
        if self.registry_user is not None and self.registry_token is not None:
            raise ValueError("registry_user and registry_token exclude each other")
        address = urlsplit(self.registry)
        if address.username is not None:
            raise ValueError("put the user of the registry into registry_user, and not into its address")
        is_open = address.scheme != "https" and address.hostname not in _LOOPBACK
        if is_open and (self.registry_user is not None or self.registry_token is not None):
            raise ValueError("credentials of a registry need https")
        return self


class ProtobufOptions(Options):
    descriptor: str
    """A file that `protoc --include_imports --descriptor_set_out=FILE` has written, where Spark's tasks run."""
    message: str
    """The full name of the message: `shop.Order`."""


class InfluxOptions(Options):
    precision: Literal["ns", "us", "ms", "s"] = "ns"
    """The unit of timestamps."""


class SyslogOptions(Options):
    write: Literal["5424", "3164"] = "5424"
    """The RFC by which rows are written. Both are read."""


class RegexOptions(Options):
    """Patterns are those of RE2, whose time grows with the size of an event only: it has no look-around."""

    pattern: str = Field(min_length=1)
    """Named groups `(?P<name>…)` are the columns, of the type STRING. It must match the whole event."""


class GrokOptions(Options):
    """Patterns are those of RE2, whose time grows with the size of an event only: it has no look-around."""

    pattern: str = Field(min_length=1)
    """Like `%{IP:client} %{WORD:method} %{NUMBER:bytes:int}`. `int` is BIGINT and `float` is DOUBLE; other fields are
    STRING. It must match the whole event."""
    patterns: dict[str, str] = Field(default_factory=dict)
    """Patterns of your own, by name."""
