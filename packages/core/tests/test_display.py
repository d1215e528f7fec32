"""Short representations of objects for ``repr`` and notebooks."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from penstock_core.display import (
    ITEMS_SHOWN,
    html_fields,
    html_info,
    html_rows,
    safe_html,
    safe_repr,
    short,
)
from tests.thorough import examples

SCALARS = st.none() | st.integers() | st.floats() | st.text(max_size=200) | st.binary(max_size=200)
VALUES = SCALARS | st.lists(SCALARS, max_size=12) | st.dictionaries(st.text(), SCALARS, max_size=12)


class Broken:
    """Its ``repr`` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Half:
    """An object whose constructor may have failed."""

    name: str

    @safe_repr
    def __repr__(self) -> str:
        return f"<Half {self.name}>"

    @safe_html
    def _repr_html_(self) -> str:
        return html_fields("Half", [("name", self.name)])


class Inner(Struct):
    depth: int = 3
    place: str = ""


class Info(Struct):
    name: str
    inner: Inner
    pending: int = 0


@given(VALUES)
@settings(max_examples=examples(100))
def test_any_value_is_one_short_line(value: Any) -> None:
    text = short(value)

    assert text.isprintable()
    assert len(text) < 6_000


@given(st.text(), VALUES)
@settings(max_examples=examples(100))
def test_any_table_is_well_formed(caption: str, value: Any) -> None:
    for html in (
        html_fields(caption, [(caption, value), (caption, caption)]),
        html_rows(caption, [caption], [[value]]),
    ):
        assert html.isprintable()
        assert ElementTree.fromstring(html).tag == "table"


def test_short_values_are_shown_whole_and_long_ones_in_part() -> None:
    assert short({"b": 1, "a": [2.5, None]}) == "{'b': 1, 'a': [2.5, None]}"
    assert short(b"abc") == "b'abc'"
    assert short(b"x" * 1_000_000).endswith("'... 1000000")
    assert len(short("x" * 1_000_000)) < 100
    assert short(dict.fromkeys(range(1_000), 1)).endswith(f"{ITEMS_SHOWN - 1}: 1, ...}}")
    assert short([[[[1]]]]) == "[[[[...]]]]"
    assert short({"a": {"b": {"c": {"d": 1}}}}) == "{'a': {'b': {'c': {...}}}}"


@pytest.mark.parametrize(
    "value", [Broken(), 10**5_000, {"a": Broken()}], ids=["broken", "long", "inner"]
)
def test_a_value_whose_repr_fails_is_named_by_its_class(value: object) -> None:
    assert short(value).isprintable()


def test_an_object_that_is_not_complete_is_shown() -> None:
    half = Half()

    assert repr(half) == "<Half, incomplete>"
    assert half._repr_html_() == "<pre>&lt;Half, incomplete&gt;</pre>"
    half.name = "a\nb\x1b[31m"
    assert repr(half) == r"<Half a\nb\x1b[31m>"
    assert half._repr_html_().startswith("<table><caption>Half</caption>")


def test_the_fields_of_a_description_are_shown_without_secrets() -> None:
    html = html_info(Info("<a>", Inner(place="s3://key:secret@lake/a?token=secret"), pending=7))

    assert "<caption>Info</caption>" in html
    assert "<th>name</th><td>&lt;a&gt;</td>" in html
    assert "<th>inner.place</th><td>s3://***@lake/a</td>" in html
    assert "secret" not in html
    assert "depth" not in html
    assert "pending" not in html


def test_the_rest_of_a_long_text_is_left_out() -> None:
    assert len(html_fields("c" * 10_000, [("n", "v" * 10_000)])) < 1_000
