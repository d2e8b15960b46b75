"""Ends of links as people write them.

penstock://connector/ID/{instance}/PORT        tremor://… is the same
/connector/ID/{instance}/PORT, connector/ID/{instance}/PORT, connector/ID/PORT
system/streams                                 the signals of all streams, for pipelines to read
"""

import re
from dataclasses import dataclass

from penstock.config.deployment import PASSTHROUGH
from penstock.core.errors import RequestError

SYSTEM_STREAMS_URL = "system/streams"
KINDS = ("connector", "pipeline")

_SCHEMES = ("penstock://", "tremor://", "/")
_PART = re.compile(r"[A-Za-z0-9._-]+|\{[A-Za-z_][A-Za-z0-9_-]*\}")
_EXPECTED = "Write connector/ID/{instance}/PORT or pipeline/ID/{instance}/PORT."


@dataclass(frozen=True, slots=True)
class Url:
    kind: str
    """`connector`, `pipeline`, or `system`."""
    id: str
    instance: str
    """As it is written, `{instance}` where nothing is."""
    port: str
    scheme: str = "penstock://"

    def of(self, instance: str) -> str:
        """As people read it, in full."""
        if self.kind == "system":
            return SYSTEM_STREAMS_URL
        return f"{self.scheme}{self.kind}/{self.id}/{instance}/{self.port}"


def parse_url(text: str) -> Url:
    """Raises RequestError."""
    scheme = next((each for each in _SCHEMES if text.startswith(each)), "")
    plain = text.removeprefix(scheme).strip("/")
    if plain == SYSTEM_STREAMS_URL:
        return Url("system", "streams", "", "out")
    kind, *parts = plain.split("/")
    if kind not in KINDS or len(parts) not in (2, 3):
        raise RequestError(f'"{text}" is no end of a link', _EXPECTED)
    if any(not _PART.fullmatch(part) for part in parts if part != PASSTHROUGH) or PASSTHROUGH in parts[1:]:
        raise RequestError(f'"{text}" is no end of a link', _EXPECTED)
    if kind == "connector" and parts[0] == PASSTHROUGH:
        raise RequestError(f'"{text}": {PASSTHROUGH} is a pipeline', f"Write pipeline/{PASSTHROUGH}/….")
    instance = parts[1] if len(parts) == 3 else "{instance}"
    return Url(kind, parts[0], instance, parts[-1], scheme if "://" in scheme else "penstock://")
