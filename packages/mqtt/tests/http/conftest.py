"""A realm with MQTT over HTTP: the fixtures of the HTTP front end."""

from __future__ import annotations

from packages.server.tests.frontends.http.conftest import web
from tests.plugin import realm, session

# The realm of all other tests: that of the folder above is one for all tests of a file.
__all__ = ["realm", "session", "web"]
