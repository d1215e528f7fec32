"""The HTTP API of a realm in memory, and users of it."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import ANN, Known


@pytest.fixture
def web(realm: penstock.Realm) -> Web:
    return Web(realm.listen_http())


@pytest.fixture
def admin(realm: penstock.Realm, web: Web) -> Known:
    """The administrator of a realm with authentication."""
    return Known(web.url, "admin", realm.access.first_password)


@pytest.fixture
def ann(admin: Known, web: Web) -> Known:
    """A user with the right to connect and no other."""
    admin.send("POST", "users", {"name": "ann", "password": ANN})
    granted = {"kind": "realm", "subject": "ann@*", "rights": ["access"]}
    admin.send("POST", "acl/grant", granted)
    return Known(web.url, "ann", ANN)
