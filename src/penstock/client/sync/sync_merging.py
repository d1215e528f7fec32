"""Registered events of merge channels, for blocking callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.client.connection.threads import LoopThread
from penstock.client.reading import merging as aio_merging


class Registered:
    """An event of a merge channel that updates follow; see :class:`penstock.aio.Registered`."""

    def __init__(self, inner: aio_merging.Registered, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.key = inner.key

    @property
    def event_id(self) -> int:
        """Of the newest event published by this handle."""
        return self._inner.event_id

    def update(self, properties: Mapping[str, Any] | None = None, /, **changes: Any) -> int:
        """Change some properties; returns the id of the delta once it is safe (SEM K2, K4)."""
        return self._loop.call(self._inner.update(properties, **changes))

    def __repr__(self) -> str:
        return repr(self._inner)
