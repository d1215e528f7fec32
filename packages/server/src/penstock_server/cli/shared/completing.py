"""Completions for the Tab key: names of channels, queues and durables, types, error codes.

Completion must neither fail nor block: if the realm does not answer or the user lacks the right to
list names, the result is empty. Names are untrusted (other users chose them), so a name is offered
only in a form that the shell reads as exactly one word.
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
"""Seconds to wait for the realm's answer; after that nothing is offered."""

_SHELL: Final = "_PENSTOCK_COMPLETE"
"""Environment variable that names the requesting shell, as in ``complete_bash``."""
_SPECIAL: Final = re.compile(r"[^\w,./+-]")
"""Characters that may be special to a shell; letters and digits of any script are not."""
_UNCHANGED: Final = re.compile(r"""[^\\"'\n\t]*""")
"""Texts that the completion scripts of zsh and fish pass on unchanged."""


def channels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of channels that begin with ``incomplete``."""
    return _matching(ctx, incomplete, lambda session: session.channels.list())


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin with ``incomplete``."""
    return _matching(ctx, incomplete, lambda session: session.queues.list())


def stores(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of channels and queues that begin with ``incomplete``."""

    async def list_stores(session: Session) -> list[str]:
        return [*await session.channels.list(), *await session.queues.list()]

    return _matching(ctx, incomplete, list_stores)


def durables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the durables of the channel on the command line."""
    # While an option lacks its value, Typer has not assigned the arguments to parameters yet.
    first = next(iter(ctx.args), None)
    channel = ctx.params.get("channel") or ctx.params.get("name") or first
    if not isinstance(channel, str):
        return []

    async def list_durables(session: Session) -> list[str]:
        opened = await session.channels.get(channel)
        return [info.name for info in await opened.durables.list()]

    return _matching(ctx, incomplete, list_durables)


def channel_types(incomplete: str) -> list[str]:
    """Return the types of channels and queues that begin with ``incomplete``."""
    from penstock_core import channel_types

    return _beginning(_modules(channel_types), incomplete)


def durable_types(incomplete: str) -> list[str]:
    """Return the types of durables that begin with ``incomplete``."""
    from penstock_core import durables

    return _beginning(_modules(durables), incomplete)


def engines(incomplete: str) -> list[str]:
    """Return the engines of channels that begin with ``incomplete``."""
    from penstock_core import engines

    return _beginning(_modules(engines), incomplete)


def codes(incomplete: str) -> list[str]:
    """Return the error codes that begin with ``incomplete``."""
    from penstock_core.vocabulary.errors import error_classes

    return _beginning(error_classes(), incomplete)


def _modules(package: ModuleType) -> list[str]:
    """Return the names of the modules in a package; each module is one registered type."""
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with ``incomplete``, quoted for the requesting shell."""
    prefix = incomplete if incomplete.isascii() else unicodedata.normalize("NFC", incomplete)
    words = (_word(name) for name in sorted(names) if name.startswith(prefix))
    return [_Completion(word) for word in words if word is not None]


class _Completion(str):
    """A completed word that always matches. Typer compares the word with the typed text again, and
    a quoted word would fail that comparison."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        return True


def _word(name: str) -> str | None:
    """Return ``name`` quoted as one word for the shell; None if that is impossible."""
    if not name.isprintable():
        return None
    match os.environ.get(_SHELL, "").removeprefix("complete_"):
        case "bash":
            return _SPECIAL.sub(r"\\\g<0>", name)
        case "powershell" | "pwsh":
            quoted = name.replace("'", "''")
            return f"'{quoted}'" if _SPECIAL.search(name) else name
        case _:
            return name if _UNCHANGED.fullmatch(name) else None


def _matching(
    ctx: typer.Context, incomplete: str, query: Callable[[Session], Awaitable[list[str]]]
) -> list[str]:
    """Return the names that begin with the typed text, from those that ``query`` reads from the
    realm; none if the realm does not answer."""
    url = ctx.params.get("url") or DEFAULT_URL
    with suppress(PenstockError, OSError, TimeoutError):
        return _beginning(_query_realm(url, query), incomplete)
    return []


def _query_realm(url: str, query: Callable[[Session], Awaitable[T]]) -> T:
    import asyncio  # imported here, so that --help does not wait for it

    from penstock import aio

    async def run() -> T:
        async with asyncio.timeout(WAIT_S):
            session = await aio.connect(url, reconnect_timeout=0)
            try:
                return await query(session)
            finally:
                await session.close()

    return asyncio.run(run())
