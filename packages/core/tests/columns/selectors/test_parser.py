"""Meaning of selector text, and error messages for malformed text."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.core.tests.columns.selectors.batches import batch_of
from penstock_core.columns.selectors import InvalidSelector, MalformedSelector, Selector, parse
from penstock_core.columns.selectors.expressions import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Compare,
    Comparison,
    DataLength,
    DataText,
    Distance,
    DistanceUnit,
    Each,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Matches,
    Negative,
    Not,
    Now,
    Or,
    Reference,
    Text,
    Truth,
)
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

A, B, C = (Reference((name,)) for name in "abc")


def equal(name: str, value: int) -> Compare:
    return Compare(Comparison.EQUAL, Reference((name,)), Integer(value))


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1 OR b = 2 AND c = 3", Or((equal("a", 1), And((equal("b", 2), equal("c", 3)))))),
        ("(a = 1 OR b = 2) AND c = 3", And((Or((equal("a", 1), equal("b", 2))), equal("c", 3)))),
        ("NOT a = 1 AND b = 2", And((Not(equal("a", 1)), equal("b", 2)))),
        ("a AND (b AND c)", And((A, B, C))),
        ("not not a", Not(Not(A))),
        ("a Is Not nUlL", IsNull(A, negated=True)),
        ("a NOT BETWEEN 1 AND 2 AND b", And((Between(A, Integer(1), Integer(2), negated=True), B))),
        (
            "a IN ('x', -1, TRUE, .5)",
            In(A, (Text("x"), Integer(-1), Truth(value=True), Float(0.5))),
        ),
        ("a MATCHES 'x/+/y'", Matches(A, "x/+/y")),
        ("a not matches '#'", Matches(A, "#", negated=True)),
        ("a NOT LIKE '!_%' ESCAPE '!'", Like(A, "!_%", "!", negated=True)),
        ("a = 'it''s'", Compare(Comparison.EQUAL, A, Text("it's"))),
        ("a = ''", Compare(Comparison.EQUAL, A, Text(""))),
        ("$a = _b1", Compare(Comparison.EQUAL, Reference(("$a",)), Reference(("_b1",)))),
        ("TRUE", Truth(value=True)),
    ],
)
def test_conditions(text: str, expected: Expression) -> None:
    assert parse(text) == expected


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("57", Integer(57)),
        ("-957", Integer(-957)),
        ("+62", Integer(62)),
        ("62L", Integer(62)),
        ("-9223372036854775808", Integer(-(2**63))),
        ("007", Integer(7)),
        ("010", Integer(8)),
        ("0", Integer(0)),
        ("0x1F", Integer(31)),
        ("0XfFL", Integer(255)),
        ("-0x8000000000000000", Integer(-(2**63))),
        ("0b101", Integer(5)),
        ("010.0", Float(10.0)),
        ("09e0", Float(9.0)),
        ("010d", Float(10.0)),
        ("7E3", Float(7000.0)),
        ("-57.9E2", Float(-5790.0)),
        ("7.", Float(7.0)),
        (".5", Float(0.5)),
        ("1e-2", Float(0.01)),
        ("5f", Float(5.0)),
        ("5D", Float(5.0)),
        ("-(-5)", Negative(Integer(-5))),
        ("--5", Negative(Integer(-5))),
        ("-b", Negative(B)),
        (
            "1 + 2 * b",
            _sum := Arithmetic(
                ArithmeticOperator.ADD,
                Integer(1),
                Arithmetic(ArithmeticOperator.MULTIPLY, Integer(2), B),
            ),
        ),
        ("1 + (2 * b)", _sum),
        (
            "8 - 4 - b",
            Arithmetic(
                ArithmeticOperator.SUBTRACT,
                Arithmetic(ArithmeticOperator.SUBTRACT, Integer(8), Integer(4)),
                B,
            ),
        ),
        ("NOW()", Now()),
        ("distance(51.5, -1, m)", Distance(51.5, -1.0, DistanceUnit.MILES)),
        ("EVENTDATA.LENGTH()", DataLength()),
        ("EventData.as_string(4, 10)", DataText(4, 10)),
        ("EVENTDATA.TAG()", Reference(("tag",))),
        ("EVENTDATA.LENGTH", Reference(("EVENTDATA", "LENGTH"))),
        ("b.c.in", Reference(("b", "c", "in"))),
        ("NAMES[1]", Reference(("NAMES", 1))),
        ("CONTACTS[].name", Reference(("CONTACTS", Each(), "name"))),
    ],
)
def test_values(text: str, expected: Expression) -> None:
    result = parse(f"a = {text}")

    assert result == Compare(Comparison.EQUAL, A, expected)
    numbers = (Integer, Float)
    if isinstance(result, Compare) and isinstance(expected, numbers):
        assert type(result.right) is type(expected)


@pytest.mark.spec("F1")
def test_names_keep_their_case_and_keywords_do_not() -> None:
    assert parse("Price > 1 and price < 2") != parse("price > 1 AND price < 2")
    assert canonical(parse("a between 1 and 2 or b is null")) == "a BETWEEN 1 AND 2 OR b IS NULL"


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=a-(b-c)", "x = a - (b - c)"),
        ("x=(a-b)-c", "x = a - b - c"),
        ("x=a/(b*c)*-(d+e)", "x = a / (b * c) * -(d + e)"),
        ("not(a or b)and(c=1)", "NOT (a OR b) AND c = 1"),
        ("(a=1)=true", "(a = 1) = TRUE"),
        ("\u0131s = 1", "\u0131s = 1"),
    ],
)
def test_canonical_text_keeps_the_parentheses_that_count(text: str, expected: str) -> None:
    assert canonical(parse(text)) == expected


@pytest.mark.spec("F4")
@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("price > ", 1, 9, "a value after '>'"),
        ("", 1, 1, "a value at the beginning"),
        ("   ", 1, 4, "a value at the beginning"),
        ("a = 1 AND\nb == 2", 2, 4, "a value after '='"),
        ("a = 1 b", 1, 7, "AND, OR or the end after '1'"),
        ("a b", 1, 3, "an operator after 'a'"),
        ("a = 'x", 1, 5, "a closing quote for the text that begins here"),
        ('a = "x"', 1, 5, "text in single quotes or a name without quotes"),
        ("a != 1", 1, 3, "'<>'"),
        ("a = 0x1G", 1, 5, "a number"),
        ("a = 0b12", 1, 5, "a number"),
        ("a = 0x8000000000000000", 1, 5, "a whole number of 64 bits (or one with '.0')"),
        ("a = 08", 1, 5, "digits 0 to 7 (a zero in front means base 8)"),
        ("a = 1.5L", 1, 5, "a whole number before 'L'"),
        ("a = 9223372036854775808", 1, 5, "a whole number of 64 bits (or one with '.0')"),
        ("a = -9223372036854775809", 1, 6, "a whole number of 64 bits (or one with '.0')"),
        ("a = 1e999", 1, 5, "a number that fits 64-bit floating point"),
        ("a = NULL", 1, 5, "a value (a missing one is found by IS NULL)"),
        ("a = b = c", 1, 7, "AND, OR or the end after 'b'"),
        ("a IS 5", 1, 6, "'NULL' after 'IS'"),
        ("a NOT = 5", 1, 7, "'BETWEEN' or 'IN' or 'LIKE' after 'NOT'"),
        ("a BETWEEN 1 OR 2", 1, 13, "'AND' after '1'"),
        ("a IN ()", 1, 7, "a literal value after '('"),
        ("a IN (b)", 1, 7, "a literal value after '('"),
        ("a IN (1 2)", 1, 9, "')' or ',' after '1'"),
        ("a LIKE b", 1, 8, "a pattern in single quotes after 'LIKE'"),
        ("a LIKE 'x' ESCAPE 'yz'", 1, 19, "one character in single quotes"),
        ("a LIKE 'x!' ESCAPE '!'", 1, 8, "a character after the last '!' in it"),
        ("a AND 5", 1, 7, "a condition (a comparison, or a boolean property)"),
        ("'x'", 1, 1, "a condition (a comparison, or a boolean property)"),
        ("NOT 1 + 2", 1, 5, "a condition (a comparison, or a boolean property)"),
        ("1 OR a", 1, 1, "a condition (a comparison, or a boolean property)"),
        ("(a = 1", 1, 7, "')' after '1'"),
        ("a = 1)", 1, 6, "AND, OR or the end after '1'"),
        ("a. = 1", 1, 4, "a name after '.'"),
        ("a[x] = 1", 1, 3, "an index from 0 on, or ']' for any element"),
        ("a[1 = 1", 1, 5, "']' after '1'"),
        ("a[] = b[]", 1, 1, "at most one '[]' in one comparison"),
        ("foo(1) = 1", 1, 1, "NOW(), DISTANCE(), EVENTDATA.LENGTH(), EVENTDATA.AS_STRING()"),
        ("NOW(1) = 1", 1, 5, "')' after '('"),
        ("DISTANCE(91, 0, K) < 1", 1, 10, "degrees from -90 to 90"),
        ("DISTANCE(9, -181, K) < 1", 1, 14, "degrees from -180 to 180"),
        ("DISTANCE(9, 1, Q) < 1", 1, 16, "a unit: K (kilometres), M (miles) or N"),
        ("EVENTDATA.AS_STRING(-1, 2) = 'a'", 1, 21, "the offset of the first byte"),
        ("JMSPrioirty = 1", 1, 1, "a header selectors can see (JMSMessageID,"),
        ("a = 'x' \x00", 1, 9, "a name, a value or an operator"),
        ("a = '\ud800'", 1, 6, "Unicode text"),
    ],
)
def test_bad_text_is_explained(text: str, line: int, column: int, expected: str) -> None:
    with pytest.raises(MalformedSelector) as caught:
        parse(text)

    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert error.expected.startswith(expected)
    assert str(error).startswith(f"selector line {line}, column {column}: expected {expected}")


@pytest.mark.spec("F4")
def test_an_error_shows_the_line_and_a_caret() -> None:
    with pytest.raises(InvalidSelector) as caught:
        parse("sku = 'a' AND\nprice > ")

    assert str(caught.value) == (
        "selector line 2, column 9: expected a value after '>', found end of text\n"
        "  price > \n"
        "          ^"
    )


@pytest.mark.spec("F4")
def test_of_a_long_line_an_error_shows_the_part_around_the_fault() -> None:
    with pytest.raises(MalformedSelector) as caught:
        parse("a = 1 AND " * 50 + "b >> 1" + " AND a = 1" * 50)

    _, shown, caret = str(caught.value).split("\n")
    assert len(shown) < 80
    assert shown[caret.index("^") - 3 :].startswith("b >> 1")
    assert caught.value.column == 504


@pytest.mark.spec("F4")
@pytest.mark.parametrize(
    "text",
    [
        "(" * 200 + "a" + ")" * 200,
        "NOT " * 200 + "a",
        "a = " + "-" * 200 + "b",
        "a = " + "1 + " * 200 + "1",
        "a = " + "(1 + " * 200 + "1" + ")" * 200,
        "(a AND " * 200 + "a" + ")" * 200,
        "(a = " * 200 + "a" + ")" * 200,
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelector, match="at most 100 levels of nesting"):
        parse(text)


@pytest.mark.spec("F4")
@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "a" + ")" * 99,
        "NOT " * 99 + "a",
        "a = " + "-" * 98 + "b",
        "(b OR a AND " * 32 + "a" + ")" * 32,
        "(a = " * 45 + "a" + ")" * 45,
    ],
)
def test_the_deepest_nesting_allowed_leaves_most_of_the_stack(text: str) -> None:
    limit = sys.getrecursionlimit()
    depth = len(_frames())
    sys.setrecursionlimit(depth + 450)
    try:
        assert parse(canonical(parse(text))) == parse(text)
        assert not Selector(text).mask(batch_of([{"tag": "t"}]))[0].as_py()
        assert Selector(text).may_match({})
    finally:
        sys.setrecursionlimit(limit)


def _frames() -> list[object]:
    result: list[object] = []
    frame = sys._getframe()
    while frame is not None:
        result.append(frame)
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return result


@pytest.mark.slow
@pytest.mark.spec("F4")
def test_length_is_bounded_and_long_flat_text_is_fine() -> None:
    flat = " OR ".join(f"a = {number}" for number in range(5_000))
    assert len(parse(flat).operands) == 5_000  # type: ignore[attr-defined]  # an Or

    with pytest.raises(InvalidSelector, match="at most 65536 characters"):
        parse("a = '" + "x" * 70_000 + "'")
    with pytest.raises(InvalidSelector, match="a pattern of at most 4096 characters"):
        parse("a LIKE '" + "_" * 5_000 + "'")
    with pytest.raises(InvalidSelector, match="a whole number of 64 bits"):
        parse("a = " + "9" * 60_000)


WORDS = st.sampled_from(
    [
        "a",
        "b.c",
        "[]",
        "[0]",
        "(",
        ")",
        ",",
        ".",
        "+",
        "-",
        "*",
        "/",
        "=",
        "<>",
        "<",
        ">",
        "<=",
        ">=",
        "AND",
        "OR",
        "NOT",
        "BETWEEN",
        "IN",
        "LIKE",
        "ESCAPE",
        "IS",
        "NULL",
        "TRUE",
        "'x'",
        "'%'",
        "''",
        "1",
        "2.5",
        ".5",
        "1e3",
        "NOW()",
        "DISTANCE(",
        "K",
        "JMSType",
        "tag",
        "$",
        "_",
        "'",
        "!",
        "?",
    ]
)


def outcome(text: str) -> Expression | str:
    try:
        return parse(text)
    except InvalidSelector as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.spec("F4")
@settings(max_examples=examples(500), deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=14).map(" ".join)))
def test_any_text_parses_or_is_an_invalid_selector(text: str) -> None:
    match outcome(text):
        case str(message):
            assert re.match(r"selector line \d+, column \d+: expected .+, found ", message, re.S)
        case found:
            assert parse(canonical(found)) == found
