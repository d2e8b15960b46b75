"""What a model's keys are, for people: the same definition gives the checks, the JSON schema and the documentation."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel

from penstock.config.values import KIND

Schema: TypeAlias = Mapping[str, Any]

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_LENGTHS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "object": "mapping"}


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    """With dots where it stands in another one."""
    values: str
    """What may be written there."""
    default: str
    """"" if there is none to show."""
    required: bool
    text: str


def options_of(model: type[BaseModel]) -> list[Option]:
    """In the order of the model, those of a nested one behind it."""
    schema = model.model_json_schema()
    return list(_options(schema, schema.get("$defs", {}), ""))


def _options(schema: Schema, definitions: Schema, prefix: str) -> Iterator[Option]:
    for name, field in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        text = " ".join(field.get("description", "").split())
        yield Option(prefix + name, _values(field, definitions), written_default(field), required, text)
        for part in (field, field.get("items", {}), *field.get("anyOf", ())):
            if "$ref" in part:
                yield from _options(_definition(part, definitions), definitions, f"{prefix}{name}.")


def _definition(part: Schema, definitions: Schema) -> Schema:
    found: Schema = definitions[part["$ref"].rpartition("/")[2]]
    return found


def _values(field: Schema, definitions: Schema) -> str:
    if KIND in field:
        return str(field[KIND])
    if "$ref" in field:
        return _values(_definition(field, definitions), definitions)
    if "anyOf" in field:
        parts = (_values(part, definitions) for part in field["anyOf"] if part.get("type") != "null")
        return " or ".join(dict.fromkeys(parts))
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list: {_values(field.get('items', {}), definitions)}"
    if field.get("type") == "string":
        return "secret" if field.get("writeOnly") else "path" if field.get("format") == "path" else "text"
    return _WORDS.get(str(field.get("type")), "any value") + _range(field)


def _range(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is None and high is None:
        return ""
    return (
        f", {low} to {high}"
        if None not in (low, high)
        else f", at least {low}"
        if low is not None
        else f", at most {high}"
    )


def written_default(field: Schema) -> str:
    """As it would be written in a file."""
    default = field.get("default")
    kinds = [part[KIND] for part in (field, *field.get("anyOf", ())) if KIND in part]
    if default is None or default in ("", [], {}) or isinstance(default, dict):
        return ""
    if kinds and kinds[0] == "size" and isinstance(default, int):
        return next((f"{default // one}{unit}" for one, unit in _SIZES if default % one == 0), str(default))
    if kinds and isinstance(default, float | int) and not isinstance(default, bool):
        return _length(round(default * 1000))
    return default if isinstance(default, str) else json.dumps(default)


def _length(length_ms: int) -> str:
    if length_ms == 0:
        return "0"
    return next((f"{length_ms // one}{unit}" for one, unit in _LENGTHS if length_ms % one == 0), f"{length_ms}ms")
