"""Requests of the native protocol as a program may send them that is not the Python client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import penstock
from penstock.client.connection.connection import RealmConnection
from penstock_core.api.requests import Request

T = TypeVar("T")


def on_its_loop(session: penstock.Session, step: Callable[[RealmConnection], Awaitable[T]]) -> T:
    """Take a step with the connection of a blocking session, on the loop of both."""

    async def taken() -> T:
        return await step(session.connection)

    return session._loop.call(taken())


def ask(session: penstock.Session, request: Request[Any], *, waits: bool = True) -> Any:
    """The answer to any request of the native protocol. Raises what it is refused with."""
    return on_its_loop(session, lambda connection: connection.request(request, waits=waits))
