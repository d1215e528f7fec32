"""The URL of the HTTP port of a realm in memory."""

from __future__ import annotations

import pytest

import penstock


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    return realm.listen_http()
