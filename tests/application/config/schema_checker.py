"""As much of JSON Schema, draft 7, as the schema of applications uses: an editor's view of a file."""

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {"$ref", "type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "minLength", "items"}
_KNOWN |= {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "anyOf", "allOf"}
_KNOWN |= {"if", "then", "description", "title", "default", "examples", "format", "writeOnly", "$schema", "$defs"}
_KNOWN |= {"patternProperties", "maxLength", "exclusiveMaximum", "minItems", "maxItems", "uniqueItems"}


class SchemaChecker:
    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def wrong(self, value: Any) -> list[str]:
        """Where the value violates the schema, and by which keyword."""
        return list(self._wrong(self._schema, value, ""))

    def _wrong(self, schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        assert schema.keys() <= _KNOWN, f"a keyword that this checker does not know: {schema.keys() - _KNOWN}"
        if "$ref" in schema:
            yield from self._wrong(self._schema["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, path)
            return
        yield from (f"{path}: {keyword}" for keyword in self._simple(schema, value))
        if "anyOf" in schema and all(self._any(each, value) for each in schema["anyOf"]):
            yield f"{path}: anyOf"
        for each in schema.get("allOf", ()):
            yield from self._wrong(each, value, path)
        if "if" in schema and not self._any(schema["if"], value):
            yield from self._wrong(schema["then"], value, path)
        if isinstance(value, dict):
            yield from self._object(schema, value, path)
        if isinstance(value, list) and "items" in schema:
            for index, each in enumerate(value):
                yield from self._wrong(schema["items"], each, f"{path}/{index}")

    def _any(self, schema: dict[str, Any], value: Any) -> bool:
        return any(True for _ in self._wrong(schema, value, ""))

    def _object(self, schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
        yield from (f"{path}/{key}: required" for key in schema.get("required", ()) if key not in value)
        if len(value) < schema.get("minProperties", 0):
            yield f"{path}: minProperties"
        patterns = schema.get("patternProperties", {})
        for key, each in value.items():
            matching = [one for pattern, one in patterns.items() if re.search(pattern, key)]
            other = schema.get("additionalProperties", True)
            if key in schema.get("properties", {}):
                yield from self._wrong(schema["properties"][key], each, f"{path}/{key}")
            elif matching:
                yield from self._wrong(matching[0], each, f"{path}/{key}")
            elif other is False:
                yield f"{path}/{key}: additionalProperties"
            elif isinstance(other, dict):
                yield from self._wrong(other, each, f"{path}/{key}")

    def _simple(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        if "type" in schema and not _is_of(schema["type"], value):
            yield "type"
        if "enum" in schema and value not in schema["enum"]:
            yield "enum"
        if "const" in schema and value != schema["const"]:
            yield "const"
        if isinstance(value, str):
            if "pattern" in schema and not re.search(schema["pattern"], value):
                yield "pattern"
            if len(value) < schema.get("minLength", 0):
                yield "minLength"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield "minimum or maximum"


def _is_of(types: str | list[str], value: Any) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)
