"""What a codec makes of a batch is what it makes of each event alone: its ways to look at a whole batch change no row,
no failure and no reason.
"""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.spark.codecs.codec import with_options
from penstock.spark.codecs.registry import codec

DOCUMENTS = (
    b'{"a":1}',
    b'{"a":"x:y","b":[1,2.5,null]}',
    b" 7 ",
    b"",
    b" ",
    b"\r",
    b"{} {}",
    b"1,2",
    b"[1",
    b"2]",
    b"1\n2",
    b"[1,\n2]",
    b'{"a":1,"a":2}',
    b'{"a\\u0062":1,"ab":2}',
    b'{"a":"\\":"}',
    b'{"a":1e999}',
    b'{"a":NaN}',
    b'{"a":"\xff"}',
    b'{"a":"\xc3\xa9"}',
    b"\xef\xbb\xbf{}",
    b'{"a":' + b"1" * 1001 + b"}",
    b"[" * 600 + b"]" * 600,
    b"nul",
    b"null",
    b'{"a":1}\n{"a":2}\n',
    b'{"a":1}\n\n {"a":"x"}',
)
LINES = (
    b"CEF:0|v|p|1.0|1|name|5|src=10.0.0.1 cnt=7",
    b"CEF:0|v|p|1.0|1|name|5|",
    b"CEF:0|v|p|1.0|1|name|5|msg=two  words  act=x y",
    b"CEF:0|v|p|1.0|1|name|5|msg=a=b act=x\n",
    b"CEF:0|v|p|1.0|1|name|5|a=1 a=2",
    b"CEF:0|v|p|1.0|1|name|5|x a=1",
    b"CEF:0|v|p|1.0|1|name|5|  a=1\tb=2\x0bc=3\x1cd=4",
    b"CEF:0|v|p|1.0|1|name|5|a=1 =b c==",
    b"CEF:0|v|p|1.0|1|n\\|ame|5|a=1\\=2",
    b"CEF:0|v|p|1.0|1|name|5|\xc3\xa9=1 b=\xc3\xa9",
    b"CEF:0|v|p|1.0|1|name|5|a=1\xc2\xa0b=2",
    b"<34>Jan  2 03:04:05 host CEF:0|v|p|1.0|1|name|5|a.b[0]=1 c-d=2",
    b"CEF:x CEF:0|v|p|1.0|1|name|5|a=1",
    b"CEF:1234|v|p|1.0|1|name|5|a=1",
    b"CEF:0|v|p|1.0|1|name|5",
    b"CEF:|v|p|1.0|1|name|5|a=1",
    b"CEF:\xd9\xa0|v|p|1.0|1|name|5|a=1",
    b"a.b:1|c",
    b"a.b:1.5|g|@0.5|#host:a,host:b,x",
    b"a.b:1:2:3|h|#x:1|c:abc",
    b"a.b:1e2|ms|#",
    b"a.b:1|c|#a:b:c,,d\n",
    b"a.b:1|c\n\n",
    b"a.b:1|c|@x",
    b"a.b:x|c",
    b"a.b:x|s|#h:1",
    b"a.b:1|s",
    b"a b:-.5|d|@1|#a:1",
    b"a.b:1|c|@0.1|@0.2",
    b":1|c",
    b"a:|c",
    b"_e{1,1}:a|b|#x",
    b"_sc|a|0",
    b"_sc:1|c",
    b"\xff",
    b"",
)


def decoded(
    name: str, ddl: str | None, values: list[bytes], config: dict[str, Any]
) -> tuple[list[Any], dict[int, str]]:
    schema = None if ddl is None else parse_ddl(ddl)
    found = codec(with_options(name, config)).decoder(schema)(pa.array(values, pa.binary()))
    assert {len(array) for array in found.arrays} == {len(values) - len(found.failed)}
    return [array.to_pylist() for array in found.arrays], dict(found.failed)


def check(name: str, ddl: str | None, values: list[bytes], config: dict[str, Any] | None = None) -> None:
    columns, failed = decoded(name, ddl, values, config or {})
    alone = [decoded(name, ddl, [value], config or {}) for value in values]
    assert failed == {row: of[0] for row, (_, of) in enumerate(alone) if of}
    good = [found for found, of in alone if not of]
    assert columns == [[value for found in good for value in found[at]] for at in range(len(columns))]


@pytest.mark.parametrize(
    ("name", "ddl"),
    [("json", None), ("json", "a BIGINT, b ARRAY<DOUBLE>"), ("json-lines", None), ("json-lines", "a BIGINT")],
)
@settings(max_examples=200)
@given(st.data())
def test_documents(name: str, ddl: str | None, data: st.DataObject) -> None:
    check(name, ddl, data.draw(st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=6)))


@pytest.mark.parametrize("name", ["cef", "dogstatsd"])
@settings(max_examples=200)
@given(st.data())
def test_lines(name: str, data: st.DataObject) -> None:
    check(name, None, data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6)))


def test_a_document_is_not_two_and_two_are_not_one() -> None:
    """`[1` and `2]` are no documents, though they are one between them, and `1,2` is not two."""
    columns, failed = decoded("json", None, [b"1,2", b"[3", b"4]", json.dumps({"a": 1}).encode()], {})
    assert (columns, [*failed]) == ([['{"a": 1}']], [0, 1, 2])
