"""The JSON schema of an application's file, for editors. In draft 7, which yaml-language-server knows best."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.config.models import BindingSection, ConnectorSection, InterceptorSection, PipelineSection
from penstock.config.options import written_default
from penstock.config.types import AboutInterceptor, Types
from penstock.config.values import KIND
from penstock.core.errors import RequestError

Schema: TypeAlias = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
_NAMES = ("id", "links", "instances", "type")
_MANY = ("object", "array")
_FILLED = "filled"
"""The definition of texts that something is put in for, whatever it is: `${NAME}`, `{variable}`."""


def schema(types: Types) -> Schema:
    """Of all that is installed, but for packages that cannot be loaded."""
    connectors = _options(types.names(), types.about)
    interceptors = _options(types.interceptors(), types.interceptor)
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


def _options(names: Iterable[str], about: Callable[[str], AboutInterceptor]) -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for name in names:
        with suppress(RequestError):
            found[name] = about(name).options
    return found


def _definitions(models: Iterable[type[BaseModel]]) -> tuple[dict[type[BaseModel], str], dict[str, Schema]]:
    """The names of the models' definitions, and these."""
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
    """As it is, or a text that something is put in for; but for names, which everybody sees."""
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
    """What stands in `config` depends on `type`."""
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
