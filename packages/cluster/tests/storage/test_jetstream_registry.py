"""Keys of a registry as a bucket takes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_cluster.storage.jetstream.registry import escape_key, unescape_key

TAKEN_BY_BUCKETS = re.compile(r"[-/_=a-zA-Z0-9]+")


KEYS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(KEYS.filter(bool))
def test_any_key_has_a_name_in_a_bucket_and_comes_back(key: str) -> None:
    escaped = escape_key(key)

    assert TAKEN_BY_BUCKETS.fullmatch(escaped)
    assert unescape_key(escaped) == key


@given(KEYS, KEYS)
def test_two_keys_have_two_names(one: str, other: str) -> None:
    assert (escape_key(one) == escape_key(other)) == (one == other)


@pytest.mark.parametrize(
    ("key", "escaped"),
    [
        ("shard/0", "shard/0"),
        ("access/user@host.example", "access/user=40host=2Eexample"),
        ("a=2Fb", "a=3D2Fb"),
        ("~*>é", "=7E=2A=3E=C3=A9"),
    ],
)
def test_names_are_these(key: str, escaped: str) -> None:
    """Buckets outlive the version that wrote them."""
    assert escape_key(key) == escaped
