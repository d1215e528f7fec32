"""The service of a front end for one realm."""

from __future__ import annotations

from typing import Protocol


class FrontEndService(Protocol):
    """The state that all connections of a front end to a realm share."""

    async def listen(self, host: str, port: int) -> int:
        """Accept connections and return the port. May be called for several ports.

        Raises ``AddressInUse``, ``InvalidArgument``.
        """
        ...

    async def run(self) -> None:
        """Run background work until cancelled."""
        return

    async def close(self) -> None:
        """Free resources that the listener does not manage. The listener itself closes ports that
        were opened through it and connections that were registered with it."""
        return
