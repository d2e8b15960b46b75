"""The codecs as people see them, and what the configuration must know of them. Nothing here needs Spark."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class About:
    name: str
    text: str
    """One sentence."""
    columns: str
    """What it makes of an event where no schema is given; "" if it needs one."""
    content_types: tuple[str, ...] = ()
    """Of a reply that is written by it; the first is the one that is sent."""
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
"""By their names."""


def names() -> tuple[str, ...]:
    """Of all codecs, in order."""
    return tuple(CODECS)


# How the events of a source are coded, and which codec is for which of them. Plain values.

AS_IT_IS = "binary"
"""The codec that leaves bytes alone."""


@dataclass(frozen=True, slots=True)
class Coding:
    """Of one source, as pipelines name it."""

    source: str
    codec: str | None
    """For content types that `codec_map` does not have; None: there is no codec for those."""
    codec_map: Mapping[str, str] = field(default_factory=dict)
    """Content type → codec; `text/*` stands for all of a kind."""
    schema: str | None = None
    """Spark DDL."""

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Content types in lower case with their codecs, the more special ones first."""
        lower = {pattern.strip().lower(): codec for pattern, codec in self.codec_map.items()}
        yield from sorted(lower.items(), key=lambda pair: (_rank(pair[0]), pair[0]))


def _rank(pattern: str) -> int:
    return ("*" in pattern) + pattern.startswith("*")


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows that are decoded alike: those of a source, or of all (""), with this content type (any: "")."""

    codec: str | None
    schema: str | None = None
    source: str = ""
    content_type: str = ""


def branches(codings: Mapping[str, Coding]) -> list[Branch]:
    """Of the sources of one input, each with its coding: of all that fit a row, the first is its own, and the last one
    fits all. Sources that are coded alike are no longer distinguished.
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
    """A port of the pipeline as people name it, and what is bound to it."""

    port: str
    targets: tuple[tuple[str, str], ...]
    """The ports that hold its rows, each with its codec; rows that have a `value` are the same bytes in all of them."""
    tells_type: bool = False
    """Whether rows carry the content type of what was encoded: replies need it."""
