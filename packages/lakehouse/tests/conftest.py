"""A realm in memory, a session with it, and the URL of its HTTP port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as running:
        yield running


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[penstock.Session]:
    with realm.connect() as opened:
        yield opened


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    return realm.listen_http()
