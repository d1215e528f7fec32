"""Sends any request of the native protocol, even one that the Python client never sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import penstock
from penstock.client.connection.connection import RealmConnection
from penstock_core.api.requests import Request

T = TypeVar("T")


def on_its_loop(session: penstock.Session, step: Callable[[RealmConnection], Awaitable[T]]) -> T:
    """Run ``step`` with the connection of a blocking session, on the session's loop."""

    async def run() -> T:
        return await step(session.connection)

    return session._loop.call(run())


def ask(session: penstock.Session, request: Request[Any], *, waits: bool = True) -> Any:
    """Send a request; return its answer. Raises the error with which the realm refuses it."""
    return on_its_loop(session, lambda connection: connection.request(request, waits=waits))
