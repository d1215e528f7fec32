"""The description of a connection for administrators."""

from __future__ import annotations

from msgspec import Struct


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    number: int
    """Connection number, unique until the realm restarts."""
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
    """Bytes that wait because the peer does not read them."""
    is_stalled: bool
