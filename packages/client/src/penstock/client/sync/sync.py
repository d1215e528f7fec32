"""The blocking client: the async client's methods, over one private loop thread.

Most of it is generated (``scripts/generate_sync.py``); a test compares the two surfaces.
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
    """Open a session with the realm at ``url``, e.g. ``penstock://localhost:9000``.

    ``penstock://user:password@host`` signs in; the password may come from ``PENSTOCK_PASSWORD``
    instead. ``token`` is a bearer token, or a function that gives one that is good now.

    Several addresses mean fail-over. A connection that is lost is made again; when that does not
    succeed for ``reconnect_timeout`` seconds, calls that wait raise ``CannotConnect``.
    Raises ``CannotConnect``, ``AuthenticationFailed``, ``AccessDenied``, ``InvalidArgument``.
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
