"""A realm with MQTT for the tests of a file, and its URL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock


@pytest.fixture(scope="module")
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as realm:
        yield realm


@pytest.fixture(scope="module")
def url(realm: penstock.Realm) -> str:
    return realm.listen_mqtt()
