"""pytest fixtures for programs that use a realm. pytest loads this module through the entry point
``penstock`` in every run on a machine with the package, so it imports the server only when a test
uses a fixture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import penstock

# A fixture imports these modules when a test uses it.
if TYPE_CHECKING:
    from penstock import aio
    from penstock_testing.virtual_realm import VirtualRealm


class SessionLeftOpen(UserWarning):
    """A test left a session open, and the fixture of its realm closed it."""


@pytest.fixture
def penstock_settings() -> dict[str, Any]:
    """Settings for the realms of the other fixtures, as keyword arguments of ``penstock.Realm``.
    Define a fixture of this name to change them: ``return {"limits__max_event_bytes": 2_000}``."""
    return {}


@pytest.fixture
def penstock_realm(
    penstock_settings: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[penstock.Realm]:
    """A new realm in memory for each test."""
    with penstock.Realm(**penstock_settings) as realm:
        yield realm
        _warn_of_sessions(request, realm)


@pytest.fixture
def penstock_session(penstock_realm: penstock.Realm) -> Iterator[penstock.Session]:
    """A session with ``penstock_realm`` that has all rights."""
    with penstock_realm.connect() as session:
        yield session


@pytest.fixture
def penstock_aio_realm(
    penstock_realm: penstock.Realm, request: pytest.FixtureRequest
) -> Iterator[aio.Realm]:
    """``penstock_realm`` for asyncio: ``async with penstock_aio_realm.connect() as session``. It
    runs on the loop of the test."""
    from penstock_server.bootstrap.aio_realm import Realm

    realm = Realm.sharing(penstock_realm)
    yield realm
    _warn_of_sessions(request, realm)


@pytest.fixture
def penstock_virtual_realm(
    penstock_settings: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[VirtualRealm]:
    """A new realm in memory for each test. Its clock is moved by the test:
    ``penstock_virtual_realm.advance(hours=25)``."""
    from penstock_testing.virtual_realm import VirtualRealm

    with VirtualRealm(**penstock_settings) as realm:
        yield realm
        _warn_of_sessions(request, realm)


def _warn_of_sessions(request: pytest.FixtureRequest, realm: penstock.Realm | aio.Realm) -> None:
    __tracebackhide__ = True
    if count := realm.open_sessions:
        warnings.warn(
            f"{request.node.nodeid} left {count} session{'s' * (count > 1)} of its realm open; "
            "close every session, or open it in a block: with realm.connect() as session",
            SessionLeftOpen,
            stacklevel=1,
        )
