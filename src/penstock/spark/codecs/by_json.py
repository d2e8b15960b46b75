"""Formats whose values are those of JSON: each event becomes the text of its JSON, which is decoded as JSON is, with a
schema or into a VARIANT; rows become JSON, and that the format.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from penstock.core.errors import RequestError
from penstock.core.kinds import VARIANT, Field, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Codec, Columns, Decode, Encode
from penstock.spark.codecs.arrow_texts import valid_texts
from penstock.spark.codecs.codec import CODECS, DATA, ROWS
from penstock.spark.codecs.documents import without
from penstock.spark.codecs.json_codec import Json
from penstock.spark.codecs.json_writer import JsonWriter, is_json
from penstock.spark.codecs.scalars import Misfit, with_names
from penstock.spark.codecs.variants import BAD, LEVELS_MAX

JSON = Json()
_encoded = msgspec.json.Encoder(decimal_format="string").encode


def decoded_by_json(values: pa.BinaryArray, to_json: Callable[[bytes], bytes], decode: Decode, name: str) -> Columns:
    """Decodes what `to_json` makes of each event. It raises Misfit."""
    texts: list[bytes | None] = []
    failed: dict[int, str] = {}
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(to_json(value))
        except Misfit as error:
            texts.append(None)
            failed[row] = str(error)

    def columns(given: Any) -> Columns:
        found = decode(pa.array(given, pa.binary()))
        return Columns(found.arrays, {row: reason.replace("JSON", name) for row, reason in found.failed.items()})

    return without(texts, failed, columns)


def json_of(value: Any) -> bytes:
    """NaN and infinities are texts, as in Spark's JSON. Raises Misfit for what JSON has no form for."""
    try:
        text = _encoded(value)
        return _encoded(with_names(value)) if b"null" in text else text  # msgspec has null for them
    except (*BAD, TypeError, ValueError, OverflowError) as error:
        raise Misfit(f"has a value that JSON cannot have: {error}") from None


class ByJson(Codec):
    """Into a VARIANT, or the fields of a schema."""

    title: str
    """The format's name in reasons."""

    def fields(self, schema: Fields | None) -> Fields:
        return JSON.fields(schema)

    def decoder(self, schema: Fields | None) -> Decode:
        decode, to_json = JSON.decoder(schema), self.reader()
        return lambda values: decoded_by_json(values, to_json, decode, self.title)

    def encoder(self, columns: pa.Schema) -> Encode:
        encode, write = JSON.encoder(columns), self.writer()
        return lambda rows: pa.array([write(one) for one in encode(rows).to_pylist()], pa.binary())

    @abstractmethod
    def reader(self) -> Callable[[bytes], bytes]:
        """From an event to its JSON. It raises Misfit."""

    @abstractmethod
    def writer(self) -> Callable[[bytes], bytes]:
        """From JSON to the format. It raises RequestError."""


# YAML

_YAML_NODES_MAX = 100_000
"""Aliases can make a small document represent billions of values: beyond it a document is refused."""

_MERGE, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "int", "float"))
_NUMBERS = (
    (_INT, re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")),
    (
        _FLOAT,
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"
            r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
        ),
    ),
)
"""Numbers of the core schema of YAML 1.2. Those of 1.1 with `:` (base 60) take a time that grows with their square."""


class _Construct(yaml.constructor.SafeConstructor):
    """Without merge keys: a few levels of them make billions of pairs of a small document."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == _MERGE for key, _ in node.value):
            raise yaml.constructor.ConstructorError(problem="merge keys are not supported")
        super().flatten_mapping(node)

    def integer(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        bases = {"0o": 8, "0x": 16}
        return int(text[2:], bases[text[:2]]) if text[:2] in bases else int(text)

    def floating(self, node: yaml.ScalarNode) -> float:
        return float(str(self.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader: Any = type("_Loader", (_Construct, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})
_Loader.add_constructor(_INT, _Construct.integer)
_Loader.add_constructor(_FLOAT, _Construct.floating)
_Loader.yaml_implicit_resolvers = {
    first: [one for one in found if one[0] not in (_INT, _FLOAT)]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}
_Dumper: Any = type("_Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
for _tag, _form in _NUMBERS:
    for _each in (_Loader, _Dumper):
        _each.add_implicit_resolver(_tag, _form, [*"-+.0123456789"])


class Yaml(ByJson):
    about = CODECS["yaml"]
    title = "YAML"

    def reader(self) -> Callable[[bytes], bytes]:
        return _yaml_as_json

    def writer(self) -> Callable[[bytes], bytes]:
        return lambda text: yaml.dump(
            msgspec.json.decode(text), Dumper=_Dumper, allow_unicode=True, sort_keys=False, encoding="utf-8"
        )


def _yaml_as_json(value: bytes) -> bytes:
    try:
        document = yaml.load(value.decode(), Loader=_Loader)  # noqa: S506  a safe loader
    except (UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        raise Misfit("is not one valid YAML document") from None
    _count_nodes(document)
    return json_of(document)


def _count_nodes(document: Any) -> None:
    """Raises Misfit if the document represents too many values, or contains itself."""
    waiting, count = [(document, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > _YAML_NODES_MAX or depth > LEVELS_MAX:
            raise Misfit(f"has more than {_YAML_NODES_MAX:,} values, or {LEVELS_MAX} levels")
        if isinstance(node, dict):
            waiting += [(each, depth + 1) for each in node.values()]
        elif isinstance(node, list | set | tuple):
            waiting += [(each, depth + 1) for each in node]


# JSON documents on lines


class JsonLines(Codec):
    """An event has any number of documents: they are the elements of `rows`."""

    about = CODECS["json-lines"]

    def fields(self, schema: Fields | None) -> Fields:
        of = VARIANT if schema is None else Kind("struct", fields=JSON.fields(schema))
        return (Field(ROWS, Kind("array", of=(of,))),)

    def decoder(self, schema: Fields | None) -> Decode:
        decode = JSON.decoder(schema)
        kind = arrow_type(self.fields(schema)[0].kind)
        return lambda values: _decoded_lines(values, decode, kind, has_schema=schema is not None)

    def encoder(self, columns: pa.Schema) -> Encode:
        if columns.names == [ROWS] and (pa.types.is_list(columns[0].type) or pa.types.is_large_list(columns[0].type)):
            of = columns[0].type.value_field.with_name(DATA)
            inner = JsonWriter(pa.schema([of]))
            if pa.types.is_nested(of.type) or is_json(of):
                return lambda rows: _lines_of_lists(rows.column(0), inner)
            raise RequestError("json-lines writes an array of structs or variants", "Make them structs.")
        encode = JSON.encoder(columns)
        return lambda rows: pc.binary_join_element_wise(encode(rows), b"\n", b"")


def _decoded_lines(values: pa.BinaryArray, decode: Decode, kind: pa.DataType, *, has_schema: bool) -> Columns:
    texts, rows, undecoded = valid_texts(values)
    lists = pc.split_pattern(texts, "\n")
    lines, owners = lists.flatten(), pc.list_parent_indices(lists)
    is_line = pc.not_equal(pc.ascii_trim_whitespace(lines), "")
    if not pc.all(is_line).as_py():
        lines, owners = lines.filter(is_line), owners.filter(is_line)
    found, owner = decode(lines.cast(pa.binary())), owners.to_numpy()
    inner = pa.StructArray.from_arrays(found.arrays, fields=[*kind.value_type]) if has_schema else found.arrays[0]
    counts = np.bincount(owner, minlength=len(texts))
    bad: dict[int, str] = {}
    if found.failed:
        for line, reason in sorted(found.failed.items(), reverse=True):
            event = owner[line]
            bad[int(event)] = f"{reason}, in line {line - int(np.searchsorted(owner, event)) + 1}"
        kept = np.isin(np.delete(owner, [*found.failed]), [*bad], invert=True)
        inner, counts = inner.filter(pa.array(kept)), np.delete(counts, [*bad])
    ends = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    failed = dict.fromkeys(undecoded, "is not valid JSON lines") | {int(rows[event]): bad[event] for event in bad}
    return Columns([pa.ListArray.from_arrays(ends, inner, type=kind)], failed)


def _lines_of_lists(column: pa.Array, inner: JsonWriter) -> pa.BinaryArray:
    lists = column.fill_null([]) if column.null_count else column
    texts = pc.binary_join_element_wise(inner.encode(pa.RecordBatch.from_arrays([lists.flatten()], [DATA])), b"\n", b"")
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(ends, texts), b"")
