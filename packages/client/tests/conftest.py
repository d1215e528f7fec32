"""A realm in this process, with embedded sessions and sessions over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_testing.relay import Relay


@pytest.fixture(params=["embedded", pytest.param("tcp", marks=pytest.mark.slow)])
def session(realm: penstock.Realm, request: pytest.FixtureRequest) -> Iterator[Session]:
    opened = realm.connect() if request.param == "embedded" else penstock.connect(realm.listen())
    with opened:
        yield opened


@pytest.fixture
def orders(session: Session) -> Channel:
    return session.channels.create("orders")


@pytest.fixture
def relay(realm: penstock.Realm) -> Iterator[Relay]:
    """A relay between the realm and its clients, which can cut connections."""
    with Relay(realm.listen()) as relay:
        yield relay


@pytest.fixture
def direct_session(realm: penstock.Realm) -> Iterator[Session]:
    """Another session, which does not go through the relay."""
    with realm.connect() as session:
        yield session
