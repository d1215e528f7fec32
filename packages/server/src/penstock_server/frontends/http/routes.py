"""The table of all routes of the API."""

from __future__ import annotations

from typing import Final

from penstock_server.frontends.http import (
    consuming,
    delivery_states,
    destinations,
    durables,
    events,
    people,
    realm,
    states,
)
from penstock_server.frontends.http.openapi import document
from penstock_server.frontends.http.routing import Call, Route, RouteTable
from penstock_server.frontends.http.shapes import NoQuery, Openapi
from penstock_server.parts import registered

GROUP: Final = "penstock.routes"
"""Entry point group of sequences of routes that installed packages add."""


async def describe(call: Call[NoQuery, None]) -> Openapi:
    """Return the OpenAPI 3.1 document of this API."""
    return document(TABLE, call.service.version)


TABLE = RouteTable(
    (
        *realm.ROUTES,
        *destinations.ROUTES,
        *events.ROUTES,
        *durables.ROUTES,
        *consuming.ROUTES,
        *delivery_states.ROUTES,
        *people.ROUTES,
        *states.ROUTES,
        *(route for part in registered(GROUP).values() for route in part.load()),
        Route("getOpenApi", "GET", "openapi.json", asks=None, endpoint=describe),
    )
)
