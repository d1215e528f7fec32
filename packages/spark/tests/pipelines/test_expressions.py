"""Slips in SQL expressions are told before Spark starts."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.expressions import called_functions, tokens_of


def test_words_are_found_outside_of_texts_names_and_comments() -> None:
    words = tokens_of("x", "SUM(`dep delay` * 1.5) -- first(x)\n + length('count(*)') /* over */")

    assert words == ["sum", "(", "`", "*", "1.5", ")", "+", "length", "(", "'", ")"]
    assert called_functions(words) == ["sum", "length"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sum(x", r"a \( is not closed"),
        ("sum(x))", r"it has a \) without its opening bracket"),
        ("a[1)", r"it has a \) without its opening bracket"),
        ("name = 'x", "the ' is not closed"),
        ("`a", "the ` is not closed"),
        ("count(*); drop", "one expression, without ;"),
        ("  ", "it must be an SQL expression"),
        ("(SELECT 1)", "it must not contain a query"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^where is .*{said}"):
        tokens_of("where", text)
