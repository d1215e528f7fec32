"""A realm in memory, which the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

import penstock


@pytest.fixture(scope="module")
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as running:
        yield running


@pytest.fixture(scope="module")
def url(realm: penstock.Realm) -> str:
    return realm.listen()


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[penstock.Session]:
    with realm.connect() as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"orders-{uuid4().hex[:8]}"
