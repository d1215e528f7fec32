"""What an administrator sees of a connection."""

from __future__ import annotations

from msgspec import Struct


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    number: int
    """Of this realm's life."""
    protocol: str
    """``native`` or ``amqp``."""
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of its software, as it says."""
    opened_s: float
    """By the clock of the loop."""
    heard_s: float
    subscriptions: int
    requests: int
    """Being worked on."""
    unsent_bytes: int
    """What waits because it does not take it."""
    is_stalled: bool
