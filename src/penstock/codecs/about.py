"""What people are told of the codecs, and what `config` must know of them. Nothing here needs Spark."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    name: str
    text: str
    """One sentence."""
    columns: str
    """What it makes of an event where no schema is given; "" if it needs one."""
    content_types: tuple[str, ...] = ()
    """Of a reply that is written by it; the first is the one that is told."""
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
