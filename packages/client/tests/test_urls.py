"""URLs of realms."""

from __future__ import annotations

import pytest

from penstock.client.connection.urls import Address, RealmUrl, parse_url
from penstock_core.vocabulary.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("penstock://localhost", RealmUrl((Address("localhost", 9_000),))),
        ("penstock://localhost:9001/", RealmUrl((Address("localhost", 9_001),))),
        ("penstock://a:1,b,c:3", RealmUrl((Address("a", 1), Address("b", 9_000), Address("c", 3)))),
        ("penstock://me:pw@a", RealmUrl((Address("a", 9_000),), "me", "pw")),
        ("penstock://me@a", RealmUrl((Address("a", 9_000),), "me")),
        ("penstock://m%40e:p%3Aw%2F@a", RealmUrl((Address("a", 9_000),), "m@e", "p:w/")),
        ("penstock://[::1]:9002", RealmUrl((Address("::1", 9_002),))),
        ("penstock://[::1]", RealmUrl((Address("::1", 9_000),))),
    ],
)
def test_a_url_names_addresses_and_the_user(text: str, expected: RealmUrl) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost:9000", "not the URL of a realm; a URL looks like penstock://localhost:9000"),
        ("http://localhost", "not the URL of a realm"),
        ("", "not the URL of a realm"),
        ("penstock://", "has no host"),
        ("penstock://a,,b", "has no host"),
        ("penstock://:9000", "has no host"),
        (
            "penstock://a:port",
            r"what follows the ':' in 'penstock://a:\*{3}' is not a port; give a number from 1 to "
            r"65535",
        ),
        ("penstock://a:0", "is not a port"),
        ("penstock://a:65536", "is not a port"),
        ("penstock://a:9000/orders", "is not a port"),
        ("penstock://[::1", r"looks like \[::1\]:9000"),
        ("penstock://[::1]9000", r"looks like \[::1\]:9000"),
    ],
)
def test_what_is_no_url_is_refused_and_says_what_one_looks_like(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse_url(text)


def test_something_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not the URL of a realm"):
        parse_url(9000)  # type: ignore[arg-type]  # that is the point


def test_an_address_reads_as_it_is_written() -> None:
    assert [str(Address("a", 1)), str(Address("::1", 2))] == ["a:1", "[::1]:2"]
