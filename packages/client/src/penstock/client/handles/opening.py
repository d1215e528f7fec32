"""The result of ``penstock.aio.connect``, to be awaited or used with ``async with``."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any

from penstock.client.handles.session import Session


class Opening(Coroutine[Any, Any, Session]):
    """The result of ``connect``: ``await`` returns the session; ``async with`` also closes it.

    Like any coroutine, it can be run as a task, and can be used only once.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Session]) -> None:
        """``coroutine`` opens the session."""
        self._coroutine = coroutine
        self._session: Session | None = None

    def __repr__(self) -> str:
        return "<Opening of a session, to be awaited or used with 'async with'>"

    def __await__(self) -> Generator[Any, Any, Session]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> Session:
        self._session = await self._coroutine
        return await self._session.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None, "__aenter__ has set it"
        await self._session.__aexit__(kind, error, traceback)
