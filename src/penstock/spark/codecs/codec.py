"""The codecs as users see them, and what the configuration needs to know about them. Nothing here needs Spark."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class About:
    """What users read about a codec."""

    name: str
    text: str
    """One sentence."""
    columns: str
    """The columns into which it decodes an event without a schema; "" if it needs one."""
    content_types: tuple[str, ...] = ()
    """The content types of a reply that it encodes; the first is the one that is sent."""
    takes_schema: bool = True
    options: "str | type[BaseModel] | None" = None
    """The model of `codec_config`, or its name as `module:Class`; None: it has none."""
    extra: str = ""
    """The extra of Penstock that installs what it needs beside `spark`."""

    def model(self) -> "type[BaseModel] | None":
        """The model of its options, imported when it is needed: tasks without options do not need it."""
        if not isinstance(self.options, str):
            return self.options
        module, _, name = self.options.partition(":")
        found: type[BaseModel] = getattr(import_module(module), name)
        return found

    @property
    def needs_schema(self) -> bool:
        return not self.columns


_OPTIONS = "penstock.spark.codecs.codec_options:"

_ALL = (
    About(
        "arrow",
        "A stream or a file of Arrow's IPC format: all its rows.",
        "",
        ("application/vnd.apache.arrow.stream",),
        options=_OPTIONS + "ArrowOptions",
    ),
    About(
        "avro",
        "One Avro value for each event, with a schema that is given or in a registry.",
        "those of the Avro schema; with a registry `data` (VARIANT)",
        ("application/avro",),
        options=_OPTIONS + "AvroOptions",
        extra="avro",
    ),
    About(
        "cef",
        "Common Event Format, with or without a syslog header.",
        "`version` … `severity`, and `extension` (MAP)",
        ("text/x-cef",),
        False,
    ),
    About(
        "dogstatsd",
        "Metrics, events and service checks of DogStatsD.",
        "`kind`, `name`, `numbers` …, and `tags` (MAP)",
        ("text/x-dogstatsd",),
        False,
    ),
    About(
        "gelf",
        "Graylog Extended Log Format 1.1.",
        "`host` … `timestamp`, and `extra` (MAP)",
        ("application/gelf",),
        False,
    ),
    About(
        "graphite",
        "Graphite's plain text protocol.",
        "`path`, `number`, `time`, `tags` (MAP)",
        ("text/x-graphite",),
        False,
    ),
    About(
        "grok",
        "Text by a grok pattern, as in Logstash.",
        "a column for each named field",
        ("text/plain",),
        False,
        _OPTIONS + "GrokOptions",
    ),
    About(
        "influx",
        "InfluxDB line protocol.",
        "`measurement`, `tags` (MAP), `fields` (VARIANT), `time`",
        ("text/x-influx",),
        False,
        _OPTIONS + "InfluxOptions",
    ),
    About("json-lines", "JSON documents, one on each line.", "`rows` (ARRAY of VARIANT)", ("application/x-ndjson",)),
    About("logfmt", 'Words like `level=info msg="two words"`.', "`data` (MAP)", ("text/x-logfmt",)),
    About(
        "null", "Nothing: events are not decoded, and rows have no bytes.", "no column", ("application/x-empty",), False
    ),
    About("parquet", "One Parquet file for each event: all its rows.", "", ("application/vnd.apache.parquet",)),
    About(
        "protobuf",
        "One message of Protocol Buffers for each event.",
        "`data` (VARIANT)",
        ("application/x-protobuf",),
        options=_OPTIONS + "ProtobufOptions",
        extra="protobuf",
    ),
    About(
        "regex",
        "Text by a regular expression with named groups.",
        "a column for each named group",
        ("text/plain",),
        False,
        _OPTIONS + "RegexOptions",
    ),
    About("statsd", "Metrics of StatsD.", "`name`, `kind`, `number`, `rate` …", ("text/x-statsd",), False),
    About(
        "syslog",
        "Syslog messages of RFC 5424 and RFC 3164.",
        "`facility`, `severity`, `time`, `host`, `app` … `message`",
        ("text/x-syslog",),
        False,
        _OPTIONS + "SyslogOptions",
    ),
    About("yaml", "One YAML document for each event.", "`data` (VARIANT)", ("application/yaml",)),
    About("binary", "The bytes as they are.", "no column beside `value`", ("application/octet-stream",), False),
    About(
        "csv",
        "One record of comma-separated values for each event.",
        "",
        ("text/csv",),
        options=_OPTIONS + "CsvOptions",
    ),
    About("json", "One JSON document for each event.", "`data` (VARIANT)", ("application/json",)),
    About("msgpack", "One MessagePack value for each event.", "`data` (VARIANT)", ("application/msgpack",)),
    About("string", "UTF-8 text.", "`text` (STRING)", ("text/plain",), False),
)

CODECS: Mapping[str, About] = {about.name: about for about in _ALL}
"""Penstock's own, by name. `registry` also has those of other packages."""


# A codec with options is one text, so that it has one name wherever it is compared, stored or passed on:
# csv{"delimiter":";"}


def with_options(name: str, config: Mapping[str, Any]) -> str:
    """The text of a codec with these options."""
    return f"{name}{json.dumps(config, sort_keys=True, separators=(',', ':'))}" if config else name


def name_of(codec: str) -> str:
    """Without its options."""
    return codec.partition("{")[0]


def options_of(codec: str) -> dict[str, Any]:
    """Raises RequestError if they are not a JSON object."""
    _, brace, rest = codec.partition("{")
    try:
        found = json.loads(brace + rest) if brace else {}
    except ValueError:
        raise RequestError(
            f"the options of the codec {codec} are not valid JSON", 'Write csv{"delimiter":";"}.'
        ) from None
    assert isinstance(found, dict)
    return found


DATA, TEXT, ROWS = "data", "text", "rows"
"""Columns that represent the whole event if they are the only ones: codecs return these without a schema."""

# How the events of a source are encoded, and which codec applies to which events. Plain values.

AS_IT_IS = "binary"
"""The codec that leaves bytes unchanged."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How the events of one source are encoded. `source`: its name in pipelines."""

    source: str
    codec: str | None
    """For content types that `codec_map` does not contain; None: those cannot be decoded."""
    codec_map: Mapping[str, str] = field(default_factory=dict)
    """Content type → codec; `text/*` matches all subtypes."""
    schema: str | None = None
    """Spark DDL."""

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Content types in lower case with their codecs, the more specific ones first."""
        lower = {pattern.strip().lower(): codec for pattern, codec in self.codec_map.items()}
        yield from sorted(lower.items(), key=lambda pair: (_rank(pair[0]), pair[0]))


CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/(\*|[A-Za-z0-9!#$&^_.+-]+)")
"""A key of a `codec_map`. Parameters are not part of it: those of events are ignored."""

CONTENT_TYPE_HINT = "Write it like application/json, or text/* for all of a kind."


def fits(content_type: str | None, pattern: str) -> bool:
    """Whether a content type matches one of a `codec_map`, in lower case. Ignores parameters (`; charset=…`) and case.
    False without a content type.
    """
    if content_type is None:
        return False
    kind = content_type.partition(";")[0].strip().lower()
    if pattern in ("*", "*/*"):
        return True
    return kind.startswith(pattern[:-1]) if pattern.endswith("/*") else kind == pattern


def _rank(pattern: str) -> int:
    return ("*" in pattern) + pattern.startswith("*")


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows that are decoded alike: those of one source ("": of all), with this content type ("": any)."""

    codec: str | None
    schema: str | None = None
    source: str = ""
    content_type: str = ""


def branches(codings: Mapping[str, Coding]) -> list[Branch]:
    """The branches for the sources of one input. The first branch that matches a row decodes it, and the last one
    matches all rows. Sources that are encoded alike are not distinguished.
    """
    alike = len({(coding.codec, *coding.patterns(), coding.schema) for coding in codings.values()}) == 1
    found: list[Branch] = []
    for coding in [*codings.values()][: 1 if alike else None]:
        source = "" if alike else coding.source
        found += [Branch(codec, coding.schema, source, pattern) for pattern, codec in coding.patterns()]
        found.append(Branch(coding.codec, coding.schema, source))
    return found if found and not found[-1].source else [*found, Branch(AS_IT_IS)]


@dataclass(frozen=True, slots=True)
class Outlet:
    """A port of the pipeline as users name it, and its targets."""

    port: str
    targets: tuple[tuple[str, str], ...]
    """The ports that contain its rows, each with its codec; rows that have a `value` are the same bytes in all."""
    adds_content_type: bool = False
    """Whether rows carry the content type of the encoded bytes: replies need it."""
    codec_maps: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Target → content types with their codecs: a reply has the codec of what it replies to."""
