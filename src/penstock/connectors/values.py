"""Models of the parts of a YAML file, the options of connectors included, and their sizes and durations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size


def unexpected(expected: str) -> PydanticCustomError:
    """An error whose message contains nothing of the value, so that it may be shown whatever the value is."""
    return PydanticCustomError("unexpected", "expected {expected}", {"expected": expected})


SIZE_MAX = 1 << 60
"""In bytes: more is a typo, and offsets have 63 bits."""
SECONDS_MAX = 100 * 365 * 86400
"""More is a typo, and not every clock can count that far."""


class StrictModel(BaseModel):
    """A part of the file: unknown keys are mistakes, and errors never show a value. The docstrings of its fields
    document them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, given: Any, info: ValidationInfo) -> Any:
        """Before all other validators: `true` is not 1. Fields with their own validator decide for themselves."""
        field = cls.model_fields[info.field_name or ""]
        has_own = any(isinstance(one, BeforeValidator) for one in field.metadata)
        members = {field.annotation, *get_args(field.annotation)}
        if isinstance(given, bool) and not has_own and members & {int, float} and bool not in members:
            raise unexpected("a whole number" if int in members else "a number")
        return given


def _size(given: Any) -> int:
    try:
        is_number = isinstance(given, int) and not isinstance(given, bool)
        size = given if is_number else parse_size(given if isinstance(given, str) else "")
    except (RequestError, OverflowError):
        raise unexpected("a size like 512KiB, 64MiB or 10GB") from None
    if size > SIZE_MAX:
        raise unexpected("at most 1 EiB")
    return int(size)


def _seconds(given: Any) -> float:
    if given == 0 and not isinstance(given, bool):
        return 0.0
    try:
        seconds = parse_duration_ms(given if isinstance(given, str) else "") / 1000
    except (RequestError, OverflowError):
        raise unexpected("a duration like 500ms, 1s, 2m or 1h") from None
    if seconds > SECONDS_MAX:
        raise unexpected("at most 100 years")
    return seconds


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
"""Written as a duration."""
SomeSeconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0), WithJsonSchema(_DURATION)]
"""More than zero."""
SecondsOrOff = Annotated[float | None, BeforeValidator(_seconds_or_off), WithJsonSchema(_DURATION_OR_OFF)]
"""None if there is no such limit."""
Duration = Annotated[str, BeforeValidator(_duration), WithJsonSchema(_DURATION)]
"""As written, once it has been validated."""


def without_port(options: BaseModel, opens: str, port: str, names: Iterable[str]) -> Iterator[str]:
    """A problem, if options of a port are set, but not the one that opens it."""
    if not getattr(options, opens) and (given := options.model_fields_set & {*names}):
        yield f"{min(given)} is only for a {port}, but `{opens}` is not set"


def check_modes(options: BaseModel, mode: str, of_modes: Mapping[str, Sequence[str]]) -> None:
    """For types with modes: `of_modes` has the modes in which an option means something. Raises ValueError for one
    that is set in another mode.
    """
    for name in sorted(options.model_fields_set & of_modes.keys()):
        if mode not in of_modes[name]:
            raise ValueError(f"{name} is only for mode {' and '.join(of_modes[name])}, but the mode is {mode}")
