"""What the shell offers after the Tab key: names of the realm's channels, queues and durables.

Nothing here may fail or be slow: without a realm, or without the right to look, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from penstock.cli.realm import DEFAULT_URL
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.aio import Session

T = TypeVar("T")

WAIT_S: Final = 1.0
"""A realm that takes longer is not there."""


def channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of channels that begin so."""
    return _matching(ctx, incomplete, lambda session: session.channels.list())


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues that begin so."""
    return _matching(ctx, incomplete, lambda session: session.queues.list())


def stores(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of channels and queues that begin so."""

    async def both(session: Session) -> list[str]:
        return [*await session.channels.list(), *await session.queues.list()]

    return _matching(ctx, incomplete, both)


def durables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the durables of the channel that is named already."""
    channel = ctx.params.get("channel")
    if not isinstance(channel, str):
        return []

    async def own(session: Session) -> list[str]:
        opened = await session.channels.get(channel)
        return [info.name for info in await opened.durables.list()]

    return _matching(ctx, incomplete, own)


def _matching(
    ctx: typer.Context, incomplete: str, ask: Callable[[Session], Awaitable[list[str]]]
) -> list[str]:
    url = ctx.params.get("url") or DEFAULT_URL
    with suppress(PenstockError, OSError, TimeoutError):
        return sorted(name for name in _asked(url, ask) if name.startswith(incomplete))
    return []


def _asked(url: str, ask: Callable[[Session], Awaitable[T]]) -> T:
    import asyncio  # --help does not wait for it

    from penstock import aio

    async def talk() -> T:
        async with asyncio.timeout(WAIT_S):
            session = await aio.connect(url, reconnect_timeout=0)
            try:
                return await ask(session)
            finally:
                await session.close()

    return asyncio.run(talk())
