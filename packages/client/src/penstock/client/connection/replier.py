"""Who sends the replies of a session, as the events know it that are replied to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock_core.columns.events.event import Event


class Replier(Protocol):
    """Sends replies to requests (SEM R2)."""

    async def reply(self, request: Event, data: bytes, attributes: Mapping[str, Any]) -> int:
        """Publish the reply to ``request`` where it asks for it; gives its id there once it is
        safe."""
        ...
