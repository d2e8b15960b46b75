"""Schemas of columns: what Spark accepts is accepted; anything else is reported with the words where parsing fails."""

import pytest

from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError

GOOD = (
    "id INT, name STRING",
    "id int not null comment 'it''s', `a.b` bigint",
    '`a``b` string COMMENT "x, y"',
    "a: int, b: string",
    "struct<a: int, b: struct<c: array<map<string, decimal(10, 2)>>>>",
    "e struct<>, v variant, t timestamp_ntz, c char(3), w varchar(10), d dec, n numeric(5)",
    "i interval day to second, j interval year to month, k interval",
    "2nd int, s string COLLATE UTF8_LCASE",
)

BAD = {
    "": "name of a column, found the end",
    "id": 'the type of "id", found the end',
    "id integr": 'the type of "id", found "integr"',
    "id int,": "name of a column, found the end",
    "id int,, b int": 'name of a column, found ","',
    "id int name string": 'expected "," or the end, found "name"',
    "id int)": 'expected "," or the end, found ")"',
    "a.b int": 'found ".b int"',
    "a array<int": 'expected ">" after the contents of array, found the end',
    "a array": 'expected "<" after array, found the end',
    "a map<string>": 'expected "," after the keys of map',
    "a varchar": "expected a length after varchar",
    "a int, A int": 'two columns "A"',
    "a int not": "expected NULL",
    "a struct<b int, b int>": 'two columns "b"',
    "nonsense()": 'found "("',
    "array<" * 3: 'expected the type of "array"',
    "a " + "array<" * 200: "nested in each other",
}


@pytest.mark.parametrize("schema", GOOD)
def test_a_schema_that_spark_accepts_is_accepted(schema: str) -> None:
    assert parse_ddl(schema), "its columns"


@pytest.mark.parametrize("schema", BAD)
def test_a_schema_that_it_does_not_accept_is_reported(schema: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_ddl(schema)
    assert BAD[schema] in str(caught.value)
