"""Faults of values are described in terms of the argument, not with the texts of msgspec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from penstock_core.vocabulary.argument_errors import ABSENT, PYTHON, TOML, explain
from penstock_core.vocabulary.definitions import Definition


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 0
    sync: Literal["group", "none"] = "group"


class Outer(Struct, forbid_unknown_fields=True):
    level: Annotated[int, Meta(ge=0, le=9)] = 0
    name: Annotated[str, Meta(min_length=1, max_length=3, pattern="^a")] = "a"
    password: Annotated[str, Meta(max_length=4)] = ""
    inner: Inner = Inner()
    ids: Annotated[list[int], Meta(max_length=2)] = []
    depths: dict[str, int] = {}
    limit: int | None = None
    share: float = 0
    flag: bool = False
    data: bytes = b""
    pair: tuple[int, int] | None = None


class Needy(Struct):
    must: int


def explanation(value: Any, kind: Any = Outer, **options: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, kind)
    return explain(raised.value, value, kind=kind, whole="the body", **options)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"level": "many"}, "level must be an integer, not 'many'"),
        ({"level": None}, "level must be an integer, not null"),
        ({"level": -1}, "level must be at least 0, not -1"),
        ({"level": 10}, "level must be at most 9, not 10"),
        ({"name": ""}, "name must have at least 1 character"),
        ({"name": "abcd"}, "name must have at most 3 characters"),
        ({"name": "b"}, "name must match '^a', not 'b'"),
        ({"inner": {"count": "x"}}, "inner.count must be an integer, not 'x'"),
        ({"inner": {"sync": "x"}}, "inner.sync must be 'group' or 'none', not 'x'"),
        ({"inner": {"sync": 3}}, "inner.sync must be 'group' or 'none', not 3"),
        ({"inner": 5}, "inner must be an object, not 5"),
        ({"inner": {"cont": 1}}, "inner has no field 'cont'; there are count, sync"),
        ({"ids": 3}, "ids must be a list, not 3"),
        ({"ids": [1, "a"]}, "ids[1] must be an integer, not 'a'"),
        ({"ids": [1, 2, 3]}, "ids must have at most 2 entries"),
        ({"pair": [1]}, "pair must have 2 entries, not 1"),
        ({"depths": {"a": "b"}}, "a value of depths must be an integer, not a string"),
        ({"depths": {3: 4}}, "a key of depths must be a string, not an integer"),
        ({"limit": "x"}, "limit must be an integer or null, not 'x'"),
        ({"share": "x"}, "share must be a number, not 'x'"),
        ({"flag": 1}, "flag must be true or false, not 1"),
        ({"data": "!"}, "data must be base64 text, not '!'"),
        ([1], "the body must be an object, not a list"),
        (True, "the body must be an object, not true"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_argument(value: Any, sentence: str) -> None:
    assert explanation(value) == sentence


def test_a_field_that_is_missing_is_named() -> None:
    assert explanation({}, Needy) == "the body needs the field 'must', which is missing"


def test_a_password_is_not_repeated() -> None:
    assert explanation({"password": 12345}) == "password must be a string, not an integer"


def test_a_long_value_is_cut() -> None:
    sentence = explanation({"level": "x" * 1_000})

    assert sentence.startswith("level must be an integer, not 'xxx")
    assert len(sentence) < 200


def test_kinds_have_the_names_of_the_language_they_were_given_in() -> None:
    assert explanation({"inner": 5}, words=PYTHON).startswith("inner must be a dictionary")
    assert explanation({"flag": None}, words=PYTHON) == "flag must be True or False, not None"
    assert explanation({"inner": 5}, words=TOML) == "inner must be a table, not 5"
    assert explanation({"limit": "x"}, words=TOML) == "limit must be an integer, not 'x'"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "the body ends too early, or a string in it has half of a surrogate pair"),
        (b'{"level": 1,}', "the body: JSON is malformed: trailing comma in object (byte 12)"),
        (b'{"name": "\xff"}', "the body must be UTF-8 (invalid start byte at byte 0)"),
        (b'{"level": 1e400}', "level: number out of range"),
    ],
)
def test_json_that_cannot_be_read_is_told_without_its_value(text: bytes, sentence: str) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as raised:
        msgspec.json.decode(text, type=Outer)

    assert explain(raised.value, ABSENT, kind=Outer, whole="the body") == sentence


def test_nesting_without_end_is_told() -> None:
    assert explain(RecursionError(), whole="the body") == "the body is nested too deep"


@pytest.mark.parametrize(
    "field", [field.encode_name for field in msgspec.structs.fields(Definition)]
)
@pytest.mark.parametrize("value", [b"\0", 1.5, [()], {3: 4}])
def test_no_attribute_is_told_in_the_words_of_the_decoder(field: str, value: Any) -> None:
    try:
        msgspec.convert({field: value}, Definition)
    except msgspec.ValidationError as error:
        sentence = explain(error, {field: value}, kind=Definition, words=PYTHON)

        assert field in sentence
        assert not any(word in sentence for word in ("$", "`", "Expected", "expected", "null"))
