"""A schema from samples: all of them fit it, and what they do not agree on is reported."""

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.kinds import ddl
from penstock.spark.codecs.inference import FIELDS_MAX, Candidate, Inferred, guess_codec, infer
from penstock.spark.codecs.registry import codec


def of_json(*documents: Any) -> Inferred:
    return infer("json", [json.dumps(one).encode() for one in documents])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([2**70], "DECIMAL(38,0)"),
        ([True, None], "BOOLEAN"),
        (["a", "2026-01-02"], "STRING"),
        (["2026-01-02", "2026-01-03"], "DATE"),
        (["2026-01-02", "2026-01-02T03:04:05Z"], "TIMESTAMP"),
        ([1, "a"], "STRING"),
        ([True, 1], "STRING"),
        ([[1], [], [2.5]], "ARRAY<DOUBLE>"),
        ([[]], "ARRAY<STRING>"),
        ([{"a": 1}, {"b": "x"}, None], "STRUCT<a:BIGINT, b:STRING>"),
        ([{"a": 1}, 5], "STRING"),
        ([None], "STRING"),
        ([{f"k{n}": n for n in range(FIELDS_MAX + 1)}], "MAP<STRING, BIGINT>"),
    ],
)
def test_a_type_fits_all_values_of_a_field(values: list[Any], kind: str) -> None:
    assert ddl(of_json(*({"x": value} for value in values)).fields) == f"x {kind}"


def test_values_that_differ_and_fields_that_are_missing_are_reported() -> None:
    found = of_json({"id": 1, "x": 1}, {"id": 2, "x": "a", "o": {"y": [1, True]}}, {"id": 3, "x": None}, [], 7)
    assert (found.samples, found.unreadable) == (5, 2)
    assert found.conflicts == {"x": {"bigint": 1, "string": 1}, "o.y[]": {"bigint": 1, "boolean": 1}}
    assert found.missing == {"x": 1, "o": 2}


def test_names_that_cannot_be_columns_are_omitted() -> None:
    found = of_json({"id": 1, "ID": 2, "__x": 3, "": 4, "a b": 5})
    assert ddl(found.fields) == "id BIGINT, `a b` BIGINT"
    assert list(found.left_out) == ["ID", "__x", ""]


def test_times_are_candidates_for_the_event_time() -> None:
    found = of_json({"at": "2026-01-02T03:04:05Z", "ms": 1767323045000, "id": 7, "o": {"s": 1767323045}})
    assert found.candidates == (Candidate("at", "iso"), Candidate("ms", "ms"), Candidate("o.s", "s"))
    assert ddl(found.fields) == "at TIMESTAMP, ms BIGINT, id BIGINT, o STRUCT<s:BIGINT>"


def test_csv_fields_get_names_and_types_from_their_texts() -> None:
    samples = [b"1,x,2026-01-02,true", b"2.5,,2026-01-03,false", b'3,"a,b",2026-01-04,TRUE', b"1,2"]
    found = infer("csv", samples, ["n", "s", "d", "b"])
    assert ddl(found.fields) == "n DOUBLE, s STRING, d DATE, b BOOLEAN"
    assert (found.unreadable, found.missing) == (1, {"s": 1})
    assert ddl(infer("csv", [b"1,x"]).fields) == "c1 BIGINT, c2 STRING"


def test_the_codec_is_the_one_that_most_samples_fit() -> None:
    assert guess_codec([b'{"a": 1}', b"[]", b"{}"]) == "json"
    assert guess_codec([msgpack.packb({"a": 1})]) == "msgpack"
    assert guess_codec([b"1,2", b"3,4", b"5"]) == "csv"
    assert guess_codec([b"hello", b"\xff"]) is None
    with pytest.raises(RequestError, match="none of 1 events is an object in json"):
        infer("json", [b"[]"])


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["2026-01-02", "2026-01-02T03:04:05Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUE, min_size=1), min_size=1, max_size=5))
def test_every_sample_can_be_decoded_with_its_inferred_schema(documents: list[dict[str, Any]]) -> None:
    samples = [json.dumps(one).encode() for one in documents]
    schema = parse_ddl(ddl(infer("json", samples).fields))
    assert codec("json").decoder(schema)(pa.array(samples, pa.binary())).failed == {}
