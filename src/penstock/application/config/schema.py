"""The JSON schema of an application's file, for editors. Draft 7, which yaml-language-server supports best."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.application.config.sections import BindingSection, ConnectorSection, InterceptorSection, PipelineSection
from penstock.application.config.types import Types
from penstock.connectors.api import About
from penstock.connectors.interceptors.api import AboutInterceptor
from penstock.connectors.values import KIND
from penstock.core.durations import format_duration
from penstock.core.errors import RequestError
from penstock.core.sizes import format_size

# A model's keys, for people: one definition yields the validation, the JSON schema and the documentation.

Schema: TypeAlias = dict[str, Any]

_WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "object": "mapping"}


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    """With dots if it is nested in another option."""
    values: str
    """The values that are allowed."""
    default: str
    """"" if there is no default to show."""
    required: bool
    text: str


def options_of(model: type[BaseModel]) -> list[Option]:
    """In the order of the model; those of a nested model follow it."""
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
    """As written in a file."""
    default = field.get("default")
    kinds = [part[KIND] for part in (field, *field.get("anyOf", ())) if KIND in part]
    if default is None or default in ("", [], {}) or isinstance(default, dict):
        return ""
    if kinds and kinds[0] == "size" and isinstance(default, int):
        return format_size(default)
    if kinds and isinstance(default, float | int) and not isinstance(default, bool):
        return format_duration(round(default * 1_000_000)) if default else "0"
    return default if isinstance(default, str) else json.dumps(default)


DIALECT = "http://json-schema.org/draft-07/schema#"
_NAMES = ("id", "links", "instances", "type")
_MANY = ("object", "array")
_FILLED = "filled"
"""The definition of any text that contains a placeholder: `${NAME}`, `{variable}`."""


def schema(types: Types) -> Schema:
    """Covers everything that is installed, except packages that cannot be loaded."""
    connectors = _option_models(types.names(), types.about)
    interceptors = _option_models(types.interceptors(), types.interceptor)
    sections: dict[str, type[BaseModel]] = {
        "connector": ConnectorSection,
        "pipeline": PipelineSection,
        "binding": BindingSection,
    }
    models: list[type[BaseModel]] = [
        *sections.values(),
        InterceptorSection,
        *connectors.values(),
        *interceptors.values(),
    ]
    references, definitions = _definitions(models)
    _choose_options(definitions[references[ConnectorSection]], connectors, references)
    _choose_options(definitions[references[InterceptorSection]], interceptors, references)
    _name_codecs(definitions[references[ConnectorSection]], types.codecs())
    definitions[_FILLED] = {"type": "string", "pattern": r"\$\{.*\}|\{.*\}"}
    return {
        "$schema": DIALECT,
        "title": "A Penstock application",
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _one_or_many(references[model]) for key, model in sections.items()},
        "$defs": definitions,
    }


def _option_models(
    names: Iterable[str], about: Callable[[str], About | AboutInterceptor]
) -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for name in names:
        with suppress(RequestError):
            found[name] = about(name).options
    return found


def _definitions(models: Iterable[type[BaseModel]]) -> tuple[dict[type[BaseModel], str], dict[str, Schema]]:
    """The names of the models' definitions, and the definitions."""
    models = [*dict.fromkeys(models)]
    found, whole = models_json_schema([(model, "validation") for model in models])
    names = {model: reference["$ref"].rpartition("/")[2] for (model, _), reference in found.items()}
    references = {model: names[model] for model in models}
    definitions: dict[str, Schema] = whole["$defs"]
    for definition in definitions.values():
        definition.pop("title", None)
        for name, field in definition.get("properties", {}).items():
            definition["properties"][name] = _property(name, field)
    return references, definitions


def _property(name: str, field: Schema) -> Schema:
    """The property itself, or a text with a placeholder; names, which are public, cannot have one."""
    field = {key: value for key, value in field.items() if key not in ("title", "default")} | _default(field)
    if name in _NAMES or any("$ref" in part or part.get("type") in _MANY for part in (field, *field.get("anyOf", ()))):
        cleaned: Schema = _clean(field)
        return cleaned
    outside: Schema = {key: field.pop(key) for key in ("description", "default") if key in field}
    return outside | {"anyOf": [_clean(field), {"$ref": f"#/$defs/{_FILLED}"}]}


def _default(field: Schema) -> Schema:
    if not any(KIND in part for part in (field, *field.get("anyOf", ()))):
        return {"default": field["default"]} if field.get("default") is not None else {}
    return {"default": text} if (text := written_default(field)) else {}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items() if key != KIND}
    return [_clean(each) for each in value] if isinstance(value, list) else value


def _choose_options(
    definition: Schema, options: Mapping[str, type[BaseModel]], references: Mapping[type[BaseModel], str]
) -> None:
    """Makes the keys of `config` depend on `type`."""
    definition["properties"]["type"] |= {"enum": sorted(options)}
    definition["allOf"] = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": _then(model, references[model]),
        }
        for name, model in sorted(options.items())
    ]


def _then(model: type[BaseModel], reference: str) -> Schema:
    chosen: Schema = {"properties": {"config": {"$ref": f"#/$defs/{reference}"}}}
    needs = any(field.is_required() for field in model.model_fields.values())
    return chosen | ({"required": ["config"]} if needs else {})


def _name_codecs(definition: Schema, codecs: Iterable[str]) -> None:
    names = sorted(codecs)
    filled = {"$ref": f"#/$defs/{_FILLED}"}
    definition["properties"]["codec"] |= {"anyOf": [{"enum": names}, filled]}
    definition["properties"]["codec_map"] |= {
        "type": "object",
        "additionalProperties": {"anyOf": [{"enum": names}, filled]},
    }


def _one_or_many(reference: str) -> Schema:
    one = {"$ref": f"#/$defs/{reference}"}
    return {"anyOf": [one, {"type": "array", "items": one}]}
