"""The blocking client: the methods of the asynchronous client, which run on one private thread with
an event loop.

Most of it is generated (``scripts/generate_sync.py``). A test compares the two clients.
"""

from __future__ import annotations

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import RECONNECT_TIMEOUT_S
from penstock.client.connection.credentials import Token
from penstock.client.connection.threads import LoopThread
from penstock.client.connection.urls import parse_url
from penstock.client.handles.session import open_session
from penstock.client.sync.sync_access import Access
from penstock.client.sync.sync_channels import Channel, Channels
from penstock.client.sync.sync_destination import Destination, Schedule
from penstock.client.sync.sync_durable_subscription import DurableSubscription
from penstock.client.sync.sync_durables import Durable, Durables
from penstock.client.sync.sync_holding import DurableHold
from penstock.client.sync.sync_joins import Joins
from penstock.client.sync.sync_queues import Queue, Queues, Reader
from penstock.client.sync.sync_session import Session
from penstock.client.sync.sync_subscription import Subscription
from penstock.client.sync.sync_transaction import JointTransaction, Transaction


def connect(
    url: str, *, reconnect_timeout: Duration = RECONNECT_TIMEOUT_S, token: Token | None = None
) -> Session:
    """Open a session with the realm at ``url``, such as ``penstock://localhost:9000``::

        with penstock.connect("penstock://localhost:9000") as session:  # closed at the end
            orders = session.channels.get("orders")

    - ``url``: ``penstock://user:password@host:port`` signs in as a user; the password may be in the
      environment variable ``PENSTOCK_PASSWORD`` instead. Several addresses, separated by commas,
      are for failover: the session uses the first one that answers
    - ``token``: a bearer token to sign in with, or a function that returns a valid one
    - ``reconnect_timeout``: after a lost connection, the session tries to reconnect for this many
      seconds; then waiting calls raise ``CannotConnect``. With 0 it tries each address once

    Raises ``CannotConnect``, ``AuthenticationFailed``, ``AccessDenied``, and ``InvalidArgument`` if
    ``url`` is not a valid address.
    """
    where = parse_url(url)
    loop = LoopThread()
    try:
        inner = loop.call(open_session(where, reconnect_timeout=reconnect_timeout, token=token))
    except BaseException:
        loop.close()
        raise
    return Session(inner, loop, loop.close)


__all__ = [
    "Access",
    "Channel",
    "Channels",
    "Destination",
    "Durable",
    "DurableHold",
    "DurableSubscription",
    "Durables",
    "Joins",
    "JointTransaction",
    "Queue",
    "Queues",
    "Reader",
    "Schedule",
    "Session",
    "Subscription",
    "Transaction",
    "connect",
]
