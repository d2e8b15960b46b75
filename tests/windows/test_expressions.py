"""The grammar of `where=` and `select=`: it is parsed as Spark parses it, or not at all."""

import pytest

from penstock.windows.expressions import DEPTH_MAX, LENGTH_MAX, Binary, Constant, Name, Node, NotCovered, Unary, parse

A, B, C = (Name((name,)) for name in "abc")
ONE, TWO = Constant(1, "int"), Constant(2, "int")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a or b and not c", Binary("or", A, Binary("and", B, Unary("not", C)))),
        ("not a = 1", Unary("not", Binary("=", A, ONE))),
        ("a + b * 2 - 1", Binary("-", Binary("+", A, Binary("*", B, TWO)), ONE)),
        ("(a + b) * 2", Binary("*", Binary("+", A, B), TWO)),
        ("- a * 2", Binary("*", Unary("-", A), TWO)),
        ("a - -1", Binary("-", A, Constant(-1, "int"))),
        ("a <> 1", Binary("!=", A, ONE)),
        ("a == 1", Binary("=", A, ONE)),
        ("a <=> b", Binary("<=>", A, B)),
        ("a + 1 is not null", Unary("is not null", Binary("+", A, ONE))),
        ("a between 1 and 2 or b", Binary("or", Binary("and", Binary(">=", A, ONE), Binary("<=", A, TWO)), B)),
        ("a not in (1, 2)", Unary("not", Binary("or", Binary("=", A, ONE), Binary("=", A, TWO)))),
        ("`a`.`b``c`", Name(("a", "b`c"))),
        ("A.b IS NULL", Unary("is null", Name(("A", "b")))),
        ("TRUE", Constant(True, "boolean")),
        ("'it is -- a text'", Constant("it is -- a text", "string")),
    ],
)
def test_precedence_is_that_of_spark(text: str, parsed: Node) -> None:
    assert parse(text) == parsed


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("2147483647", Constant(2147483647, "int")),
        ("2147483648", Constant(2147483648, "bigint")),
        ("-2147483648", Constant(-2147483648, "int")),
        ("7L", Constant(7, "bigint")),
        ("-9223372036854775808", Constant(-(2**63), "bigint")),
        ("1.5", Constant(1.5, "decimal")),
        (".5", Constant(0.5, "decimal")),
        ("1.5d", Constant(1.5, "double")),
    ],
)
def test_the_type_of_a_number_follows_from_how_it_is_written(text: str, constant: Constant) -> None:
    assert parse(text) == constant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a = b = c",
        "a = b is null",
        "abs(a)",
        "cast(a as int)",
        "date '2026-01-31'",
        "case when a then b end",
        "null",
        "a = null",
        "a in (b)",
        "a in (1, 1.5)",
        "a in ()",
        "a like 'x'",
        "a || b",
        "a div b",
        "+ a",
        "1e3",
        "1.5bd",
        "9223372036854775808",
        "1a",
        "'it''s'",
        "'a' 'b'",
        r"'\n'",
        '"a"',
        "a -- 1",
        "a /* no */ + 1",
        "a[0]",
        "a.",
        "a.*",
        "ä",
        "(a",
        "a)",
        "not",
        "a not b",
        "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1),
        "a" * (LENGTH_MAX + 1),
    ],
)
def test_what_the_grammar_does_not_have_is_left_to_spark(text: str) -> None:
    with pytest.raises(NotCovered):
        parse(text)
