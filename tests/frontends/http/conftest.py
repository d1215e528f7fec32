"""A realm in memory, a session with it, and its HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.frontends.http.asking import Web


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as running:
        yield running


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[penstock.Session]:
    with realm.connect() as opened:
        yield opened


@pytest.fixture
def web(realm: penstock.Realm) -> Web:
    return Web(realm.listen_http())
