"""The codecs as users see them, and what the configuration needs to know about them. Nothing here needs Spark."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class About:
    name: str
    text: str
    """One sentence."""
    columns: str
    """The columns into which it decodes an event without a schema; "" if it needs one."""
    content_types: tuple[str, ...] = ()
    """The content types of a reply that it encodes; the first is the one that is sent."""
    takes_schema: bool = True

    @property
    def needs_schema(self) -> bool:
        return not self.columns


_ALL = (
    About("binary", "The bytes as they are.", "no column beside `value`", ("application/octet-stream",), False),
    About("csv", "One record of comma-separated values for each event.", "", ("text/csv",)),
    About("json", "One JSON document for each event.", "`data` (VARIANT)", ("application/json",)),
    About("msgpack", "One MessagePack value for each event.", "`data` (VARIANT)", ("application/msgpack",)),
    About("string", "UTF-8 text.", "`text` (STRING)", ("text/plain",), False),
)

CODECS: Mapping[str, About] = {about.name: about for about in _ALL}
"""Penstock's own, by name. `registry` also has those of other packages."""


DATA, TEXT = "data", "text"
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
