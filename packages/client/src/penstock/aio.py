"""Penstock for asyncio: the classes and methods of :mod:`penstock`, with ``async`` and ``await``.

::

    async with penstock.aio.connect("penstock://localhost:9000") as session:
        orders = await session.channels.get("orders")
        await orders.publish(b"...", properties={"price": 9.5})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import RECONNECT_TIMEOUT_S
from penstock.client.connection.credentials import Token
from penstock.client.connection.urls import parse_url
from penstock.client.handles.access import Access
from penstock.client.handles.channels import Channel, Channels
from penstock.client.handles.destination import Destination
from penstock.client.handles.durables import Durable, Durables
from penstock.client.handles.joins import Joins
from penstock.client.handles.opening import Opening
from penstock.client.handles.pattern_durables import PatternDurables
from penstock.client.handles.queues import Queue, Queues
from penstock.client.handles.schedule import Schedule, Scheduled
from penstock.client.handles.session import Session, open_session
from penstock.client.publishing.producer import Producer
from penstock.client.publishing.transaction import JointTransaction, Transaction
from penstock.client.reading.delivered import DeliveredBatch, DeliveredEvent
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.client.reading.holding import DurableHold
from penstock.client.reading.key_state import KeyState
from penstock.client.reading.merging import Registered
from penstock.client.reading.pattern_subscription import (
    PatternDurableSubscription,
    PatternSubscription,
)
from penstock.client.reading.peeking import Peeked
from penstock.client.reading.reader import Reader
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent
from penstock.client.reading.subscription import Subscription
from penstock.missing_packages import from_package
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event

if TYPE_CHECKING:
    from penstock_server.bootstrap.aio_realm import Realm
else:

    def __getattr__(name: str) -> Any:
        """Import ``Realm`` when it is first used: clients run without the server package."""
        if name != "Realm":
            raise AttributeError(f"module 'penstock.aio' has no attribute {name!r}")
        with from_package("penstock_server"):
            globals()[name] = importlib.import_module("penstock_server.bootstrap.aio_realm").Realm
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)


def connect(
    url: str, *, reconnect_timeout: Duration = RECONNECT_TIMEOUT_S, token: Token | None = None
) -> Opening:
    """Open a session with the realm at ``url``, such as ``penstock://localhost:9000``::

        async with penstock.aio.connect(url) as session:  # closed at the end of the block
            ...
        session = await penstock.aio.connect(url)  # close it yourself

    - ``url``: ``penstock://user:password@host:port`` signs in as a user; the password may be in the
      environment variable ``PENSTOCK_PASSWORD`` instead. Several addresses, separated by commas,
      are for failover: the session uses the first one that answers
    - ``token``: a bearer token to sign in with, or a function that returns a valid one
    - ``reconnect_timeout``: after a lost connection, the session tries to reconnect for this many
      seconds; then waiting calls raise ``CannotConnect``. With 0 it tries each address once

    Raises ``CannotConnect``, ``AuthenticationFailed``, ``AccessDenied``, and ``InvalidArgument`` if
    ``url`` is not a valid address.
    """

    # The URL is parsed when the session is awaited, so that a wrong one raises its error there.
    async def open_url() -> Session:
        return await open_session(parse_url(url), reconnect_timeout=reconnect_timeout, token=token)

    return Opening(open_url())


__all__ = [
    "Access",
    "Channel",
    "Channels",
    "DeliveredBatch",
    "DeliveredEvent",
    "Destination",
    "Durable",
    "DurableHold",
    "DurableSubscription",
    "Durables",
    "Event",
    "EventBatch",
    "Joins",
    "JointTransaction",
    "KeyState",
    "Opening",
    "PatternDurableSubscription",
    "PatternDurables",
    "PatternSubscription",
    "Peeked",
    "Producer",
    "Queue",
    "Queues",
    "Reader",
    "Realm",
    "ReceivedBatch",
    "ReceivedEvent",
    "Registered",
    "Schedule",
    "Scheduled",
    "Session",
    "Subscription",
    "Transaction",
    "connect",
]
