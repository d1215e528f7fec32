"""A front end as it serves one realm."""

from __future__ import annotations

from typing import Protocol


class FrontEndService(Protocol):
    """What all connections of a front end to a realm share."""

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; gives the port. May be called for several ports.

        Raises ``AddressInUse``, ``InvalidArgument``.
        """
        ...

    async def run(self) -> None:
        """Work beside the connections, until cancelled."""
        return

    async def close(self) -> None:
        """End what the listener does not know of: it closes the ports that were opened through it
        and ends the connections that were registered with it."""
        return
