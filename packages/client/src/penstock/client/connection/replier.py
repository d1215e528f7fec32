"""The interface that received events use to send replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock_core.columns.events.event import Event


class Replier(Protocol):
    """Sends replies to requests (SEM R2)."""

    async def reply(self, request: Event, data: bytes, attributes: Mapping[str, Any]) -> int:
        """Publish a reply on the ``reply_to`` of ``request``. Return its id once it is stored
        safely."""
        ...
