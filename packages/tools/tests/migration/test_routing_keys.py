"""Bindings of RabbitMQ as selectors: both take the same keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Event
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.migration.routing_keys import (
    matches,
    selector_of_headers,
    selector_of_keys,
    selector_of_pattern,
)
from tests.thorough import examples

WORDS = st.sampled_from(["a", "b", "a_b", "50%", "it's", "", "!"])
KEYS = st.lists(WORDS, min_size=1, max_size=4).map(".".join).filter(bool)
PATTERNS = st.lists(st.one_of(WORDS, st.sampled_from("*#*#")), min_size=1, max_size=5).map(".".join)


def as_regular_expression(pattern: str) -> str:
    """A pattern in the words of another engine: each word brings the dot before it."""
    parts = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return "".join(parts.get(word, r"\." + re.escape(word)) for word in pattern.split("."))


@settings(max_examples=examples(300))
@given(PATTERNS, KEYS)
def test_a_key_matches_as_in_rabbitmq(pattern: str, key: str) -> None:
    assert matches(pattern, key) == bool(re.fullmatch(as_regular_expression(pattern), f".{key}"))


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=8), PATTERNS)
def test_a_selector_takes_the_keys_that_its_pattern_takes(keys: list[str], pattern: str) -> None:
    try:
        selector = selector_of_pattern(pattern, "tag")
    except InvalidArgument:
        assert {"*", "#"} <= set(pattern.split(".")), "either alone has a selector"
        return
    with penstock.Realm() as realm, realm.connect() as session:
        channel = session.channels.create("keys")
        channel.publish_many([Event(tag=key) for key in keys])
        taken = [event.tag for event in channel.browse(selector=selector)]

    assert taken == [key for key in keys if matches(pattern, key)]


@pytest.mark.parametrize(
    ("pattern", "selector"),
    [
        ("#", ""),
        ("*.#", ""),
        ("eu.new", "tag = 'eu.new'"),
        ("*", "tag NOT LIKE '%.%'"),
        ("eu.*", "tag LIKE 'eu.%' AND tag NOT LIKE '%.%.%'"),
        ("eu.#", "tag = 'eu' OR tag LIKE 'eu.%'"),
        ("eu.*.#", "tag LIKE 'eu.%'"),
        ("a_b.*.it's", "tag LIKE 'a!_b.%.it''s' ESCAPE '!' AND tag NOT LIKE '%.%.%.%'"),
    ],
)
def test_a_pattern_is_a_readable_selector(pattern: str, selector: str) -> None:
    assert selector_of_pattern(pattern, "tag") == selector


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("*.lost.#", "MATCHES '+/lost/#'"),
        ("#.lost.*", "publish the words as properties"),
        ("#.a.#.b.#.c.#.d.#", "more than 4 # between words"),
    ],
)
def test_a_pattern_without_a_selector_says_what_to_do(pattern: str, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(advice)):
        selector_of_pattern(pattern, "tag")


def test_an_empty_key_is_that_of_an_event_without_a_tag() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        channel = session.channels.create("keys")
        channel.publish_many([Event(b"none"), Event(b"other", tag="x"), Event(b"a", tag="a")])
        selector = selector_of_keys({"", "a"}, "tag")
        taken = [event.data for event in channel.browse(selector=selector)]

    assert taken == [b"none", b"a"]


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"x-match": "all", "kind": "new", "eu": True}, [0]),
        ({"kind": "new"}, [0, 1]),
        ({"x-match": "any", "kind": "old", "price": 2.5}, [1, 2]),
        ({"x-match": "any", "code": 7, "x-own": 1}, [2]),
        ({"x-match": "all-with-x", "code": None}, [2]),
        ({"x-match": "all"}, [0, 1, 2]),
    ],
)
def test_headers_are_properties(arguments: dict[str, object], taken: list[int]) -> None:
    events = [
        Event(properties={"kind": "new", "eu": True}),
        Event(properties={"kind": "new", "eu": False, "price": 2.5}),
        Event(properties={"kind": "old", "code": 7}),
    ]
    with penstock.Realm() as realm, realm.connect() as session:
        channel = session.channels.create("headers")
        channel.publish_many(events)
        matches = channel.browse(selector=selector_of_headers(arguments) or "")
        ids = [event.event_id for event in matches]

    assert ids == taken


def test_a_binding_to_any_of_no_headers_takes_nothing() -> None:
    assert selector_of_headers({"x-match": "any"}) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-match": "most"}, "not a mode"),
        ({"a-b": 1}, "not the name of a property"),
        ({"JMSType": "new"}, "not the name of a property"),
        ({"tag": "new"}, "not the name of a property"),
        ({"a": [1]}, "cannot compare with"),
        ({"a": 1 << 70}, "cannot compare with"),
    ],
)
def test_a_header_that_no_selector_tests_is_named(
    arguments: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        selector_of_headers(arguments)
