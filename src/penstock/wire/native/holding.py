"""Requests about events by id: what a durable still has to see, and who holds it as a whole."""

from __future__ import annotations

from penstock.core.bounds import EndId, EventId, GivenName, Number
from penstock.core.ids import BoundedSpans
from penstock.wire.native.headers import Request


class DescribeOutstanding(Request, frozen=True, tag=36):
    """What a durable still has to see of ``first_id`` up to ``end_id``; changes nothing."""

    channel: Number
    name: GivenName
    first_id: EventId
    end_id: EndId


class Hold(Request, frozen=True, tag=48):
    """A sole client takes the outstanding events from ``first_id`` up to ``end_id`` into its
    hands; answered with those it has of them."""

    subscription: Number
    first_id: EventId
    end_id: EndId


class Bury(Request, frozen=True, tag=49):
    """Send events to the dead event store (SEM T10); answered by how many."""

    subscription: Number
    spans: BoundedSpans
    reason: str
    """Cut where it is long."""
