"""A realm with one user, who has the right to connect and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.access.realms import QUICK


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            session.access.create_user("alice", "secret")
            session.access.grant("alice@*", "access")
        yield realm
