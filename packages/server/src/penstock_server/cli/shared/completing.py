"""Completions for the Tab key: names of channels, queues and durables, types, error codes.

Nothing here may fail or be slow: without a realm, or without the right to look, nothing is offered.
Other users have chosen the names, so a name is offered only in a form that the shell takes for one
word and nothing else.
"""

from __future__ import annotations

import os
import pkgutil
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared.realm import DEFAULT_URL

if TYPE_CHECKING:
    from penstock.aio import Session

T = TypeVar("T")

WAIT_S: Final = 1.0
"""Seconds after which a realm that has not answered is ignored."""

_SHELL: Final = "_PENSTOCK_COMPLETE"
"""The variable that says which shell asks: ``complete_bash`` and so on."""
_SIGNS: Final = re.compile(r"[^\w,./+-]")
"""Characters that may mean something to a shell; letters and digits of any script do not."""
_OFFERED: Final = re.compile(r"""[^\\"'\n\t]*""")
"""Texts that the scripts of zsh and fish pass on unchanged."""


def channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of channels that begin as typed."""
    return _matching(ctx, incomplete, lambda session: session.channels.list())


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues that begin as typed."""
    return _matching(ctx, incomplete, lambda session: session.queues.list())


def stores(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of channels and queues that begin as typed."""

    async def both(session: Session) -> list[str]:
        return [*await session.channels.list(), *await session.queues.list()]

    return _matching(ctx, incomplete, both)


def durables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the durables of the channel on the command line."""
    # After an option that still lacks its value, arguments cannot be told apart.
    first = next(iter(ctx.args), None)
    channel = ctx.params.get("channel") or ctx.params.get("name") or first
    if not isinstance(channel, str):
        return []

    async def own(session: Session) -> list[str]:
        opened = await session.channels.get(channel)
        return [info.name for info in await opened.durables.list()]

    return _matching(ctx, incomplete, own)


def channel_types(incomplete: str) -> list[str]:
    """Types of channels and queues."""
    from penstock_core import channel_types

    return _beginning(_modules(channel_types), incomplete)


def durable_types(incomplete: str) -> list[str]:
    """Types of durables."""
    from penstock_core import durables

    return _beginning(_modules(durables), incomplete)


def engines(incomplete: str) -> list[str]:
    """Engines of channels."""
    from penstock_core import engines

    return _beginning(_modules(engines), incomplete)


def codes(incomplete: str) -> list[str]:
    """Codes of errors."""
    from penstock_core.vocabulary.errors import error_classes

    return _beginning(error_classes(), incomplete)


def _modules(package: ModuleType) -> list[str]:
    """Names of the modules in a package, which is the registry."""
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The candidates that begin as typed, in the form that the asking shell takes."""
    begin = incomplete if incomplete.isascii() else unicodedata.normalize("NFC", incomplete)
    words = (_word(name) for name in sorted(names) if name.startswith(begin))
    return [_Offered(word) for word in words if word is not None]


class _Offered(str):
    """A completed word. Typer filters again, by the word; this one always counts as a match."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        return True


def _word(name: str) -> str | None:
    """``name`` as one word for the shell; None if it cannot be offered."""
    if not name.isprintable():
        return None
    match os.environ.get(_SHELL, "").removeprefix("complete_"):
        case "bash":
            return _SIGNS.sub(r"\\\g<0>", name)
        case "powershell" | "pwsh":
            quoted = name.replace("'", "''")
            return f"'{quoted}'" if _SIGNS.search(name) else name
        case _:
            return name if _OFFERED.fullmatch(name) else None


def _matching(
    ctx: typer.Context, incomplete: str, ask: Callable[[Session], Awaitable[list[str]]]
) -> list[str]:
    url = ctx.params.get("url") or DEFAULT_URL
    with suppress(PenstockError, OSError, TimeoutError):
        return _beginning(_asked(url, ask), incomplete)
    return []


def _asked(url: str, ask: Callable[[Session], Awaitable[T]]) -> T:
    import asyncio  # imported here, so that --help does not wait for it

    from penstock import aio

    async def talk() -> T:
        async with asyncio.timeout(WAIT_S):
            session = await aio.connect(url, reconnect_timeout=0)
            try:
                return await ask(session)
            finally:
                await session.close()

    return asyncio.run(talk())
