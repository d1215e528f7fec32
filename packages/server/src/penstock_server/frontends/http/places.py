"""Limits the connections: in all, and for each address; a few more may always ask for the health.

When there is no room, the connection is dropped that has kept the realm waiting longest for a
request, for the rest of one, or for the next. One that is being answered stays.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

SPARE: Final = 8
"""Connections above the limit, reserved for health checks."""
_HOME_BITS: Final = 64
"""Bits of an IPv6 address that identify its owner, who chooses the rest freely."""


class Guest(Protocol):
    """A connection, as it is counted here."""

    address: str
    heard_s: float
    """When it last sent something."""
    is_spare: bool
    """It came when all connections were being answered, and may only ask for the health."""

    @property
    def is_waited_for(self) -> bool:
        """Whether the realm waits for it to send something."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


class ConnectionPlaces:
    """The connections of one realm."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._guests: dict[Guest, None] = {}
        self._spare: set[Guest] = set()
        self._of_address: Counter[str] = Counter()

    def take(self, guest: Guest) -> bool:
        """Admit a connection, if need be by dropping another; gives whether there is room."""
        home = home_of(guest.address)
        if self._of_address[home] >= self._most_of_address and not self._drop_one(home):
            return False
        if len(self._guests) - len(self._spare) >= self._most:
            is_spare = not self._drop_one()
            if is_spare and len(self._spare) >= SPARE:
                return False
            guest.is_spare = is_spare
            self._spare |= {guest} if is_spare else set()
        self._guests[guest] = None
        self._of_address[home] += 1
        return True

    def leave(self, guest: Guest) -> None:
        """Forget a connection; harmless for one that was not admitted."""
        if guest not in self._guests:
            return
        del self._guests[guest]
        self._spare.discard(guest)
        home = home_of(guest.address)
        self._of_address[home] -= 1
        if not self._of_address[home]:
            del self._of_address[home]

    def _drop_one(self, home: str = "") -> bool:
        """Drop a connection for a new one: of ``home``, or else of the address that has most. Gives
        whether there was one to drop."""
        waited_for = [
            guest
            for guest in self._guests
            if guest.is_waited_for
            and guest not in self._spare
            and (not home or home_of(guest.address) == home)
        ]
        if not waited_for:
            return False
        taken = self._of_address
        guest = min(waited_for, key=lambda each: (-taken[home_of(each.address)], each.heard_s))
        self.leave(guest)
        guest.drop()
        return True


def home_of(address: str) -> str:
    """The part of an address that is counted as one."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> _HOME_BITS:x}/{_HOME_BITS}"
