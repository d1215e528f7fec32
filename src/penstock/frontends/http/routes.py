"""All routes of the API."""

from __future__ import annotations

from penstock.frontends.http import (
    consuming,
    destinations,
    durables,
    events,
    people,
    queues,
    realm,
    states,
    topics,
)
from penstock.frontends.http.openapi import document
from penstock.frontends.http.routing import Call, Route, RouteTable
from penstock.frontends.http.shapes import NoQuery, Openapi


async def describe(call: Call[NoQuery, None]) -> Openapi:
    """The OpenAPI 3.1 document of this API."""
    return document(TABLE, call.service.version)


TABLE = RouteTable(
    (
        *realm.ROUTES,
        *destinations.ROUTES,
        *events.ROUTES,
        *durables.ROUTES,
        *queues.ROUTES,
        *consuming.ROUTES,
        *people.ROUTES,
        *states.ROUTES,
        *topics.ROUTES,
        Route("getOpenApi", "GET", "openapi.json", asks=None, endpoint=describe),
    )
)
