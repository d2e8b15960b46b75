"""Sizes and lengths of time in a YAML file. Also for the options of connectors."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size


def unexpected(expected: str) -> PydanticCustomError:
    """An error whose words hold nothing of the value, so that they may be shown whatever it is."""
    return PydanticCustomError("unexpected", "expected {expected}", {"expected": expected})


def _size(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    try:
        return parse_size(given if isinstance(given, str) else "")
    except RequestError:
        raise unexpected("a size like 512KiB, 64MiB or 10GB") from None


def _seconds(given: Any) -> float:
    if given == 0 and not isinstance(given, bool):
        return 0.0
    try:
        return parse_duration_ms(given if isinstance(given, str) else "") / 1000
    except RequestError:
        raise unexpected("a length of time like 500ms, 1s, 2m or 1h") from None


def _duration(given: Any) -> str:
    _seconds(given)
    return str(given)


def _seconds_or_off(given: Any) -> float | None:
    return None if given is None or given in ("off", False) else _seconds(given)


KIND = "x-penstock"
"""A keyword of JSON schemas, for the documentation: what a value is."""
_SIZE = {"type": ["integer", "string"], KIND: "size", "examples": ["64MiB"]}
_DURATION = {"type": "string", KIND: "duration", "examples": ["500ms", "1s", "2m"]}
_DURATION_OR_0 = {"anyOf": [_DURATION, {"const": 0}], KIND: "duration"}
_DURATION_OR_OFF = {"anyOf": [_DURATION, {"enum": ["off", False]}, {"type": "null"}], KIND: "duration or off"}

Size = Annotated[int, BeforeValidator(_size), Field(gt=0), WithJsonSchema(_SIZE)]
"""In bytes."""
Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema(_DURATION_OR_0)]
"""Written as a length of time."""
SomeSeconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0), WithJsonSchema(_DURATION)]
"""More than none."""
SecondsOrOff = Annotated[float | None, BeforeValidator(_seconds_or_off), WithJsonSchema(_DURATION_OR_OFF)]
"""None where there is no such limit."""
Duration = Annotated[str, BeforeValidator(_duration), WithJsonSchema(_DURATION)]
"""As it is written, once it is seen to be one."""
