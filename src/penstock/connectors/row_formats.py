"""Events as lines of text, for sinks that take bytes: standard output, HTTP, TCP."""

import base64
import json

from penstock.connectors.api import Outgoing


def encode(outgoing: Outgoing, form: str) -> bytes:
    """`raw`: the values with nothing between them. `lines`: a newline after each. `json`: one object per line for each
    event, whatever its bytes are.
    """
    match form:
        case "lines":
            return b"".join(part for value in outgoing.values for part in (value, b"\n"))
        case "json":
            return b"".join(_as_json(outgoing, place) for place in range(len(outgoing.values)))
        case _:
            return b"".join(outgoing.values)


def _as_json(outgoing: Outgoing, place: int) -> bytes:
    time = outgoing.event_times_us[place] if outgoing.event_times_us else None
    key = outgoing.keys[place] if outgoing.keys else b""
    found = {"id": outgoing.ids[place], "event_time_us": time}
    line = found | _text("key", key) | _text("value", outgoing.values[place])
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, data: bytes) -> dict[str, str]:
    """The text itself, or base64 under another name if it is not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
