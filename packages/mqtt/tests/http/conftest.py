"""A realm with MQTT over HTTP: the fixtures of the HTTP front end."""

from __future__ import annotations

from packages.server.tests.frontends.http.conftest import realm, session, web

__all__ = ["realm", "session", "web"]
