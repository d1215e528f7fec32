"""Subscriptions: to open and end them, and to settle what they were handed."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.durables import Outstanding
from penstock.api.requests import Request
from penstock.core.bounds import (
    Count,
    EndId,
    EventId,
    GivenName,
    LastId,
    Number,
    SelectorText,
    Window,
)
from penstock.core.ids.ids import BoundedSpans
from penstock.core.vocabulary.identities import ChannelNumber
from penstock.core.vocabulary.start_positions import AnyStart


class Subscribed(Struct, frozen=True):
    """A subscription is open: where it really begins, and where a browse ends."""

    first_id: int
    stop_id: int | None
    strict_order: bool = False
    """A seat at a durable with ``strict_order`` or ``order_by``: what was delivered may be recalled
    (SEM D11)."""
    confirm: bool = False
    """Whether the client is to say what has arrived (SEM J5)."""
    cumulative: bool = False
    """A seat where acknowledging an event settles the earlier ones: what was rolled back before
    has to be told before."""


class Subscribe(Request[Subscribed], frozen=True):
    """Read a channel: live, or up to and including ``last_id`` (a browse; -1: all there is)."""

    channel: ChannelNumber
    subscription: Number
    start: AnyStart
    credit: Count
    selector: SelectorText = ""
    browse: bool = False
    last_id: LastId | None = None
    confirms: bool = False
    """The client says what has arrived when it is asked to (:class:`Credit`, SEM J5)."""
    deltas: bool = False
    """The client understands deltas: changes of a merge channel may come as such (SEM K3)."""
    bytes_max: Count = 0
    """Bytes of deliveries the client has room for, until it says that they were taken
    (:class:`Credit`); a single event may be larger. 0: as many as there is credit for."""
    bytes_held: Count = 0
    """What it still has of an earlier connection."""


class Attach(Request[Subscribed], frozen=True):
    """Take a seat at a durable."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    window: Window | None = None
    pull: bool = False
    selector: SelectorText = ""
    auto_ack: bool = False
    """The client acknowledges what it was handed without being told to (SEM D5, J7)."""
    sole: bool = False
    """Hold the durable as a whole: nothing is delivered, events are taken by :class:`Hold`."""
    bytes_max: Count = 0
    """As of :class:`Subscribe`; of no account to who demands events."""


class BrowseDurable(Request[Subscribed], frozen=True):
    """See what is outstanding at a durable, or on a queue (its durable is called ""), in order;
    changes nothing (SEM D16, Q4)."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    credit: Count
    selector: SelectorText = ""
    bytes_max: Count = 0
    """As of :class:`Subscribe`."""


class Unsubscribe(Request[None], frozen=True):
    subscription: Number


class Settle(Request[None], frozen=True):
    """Acknowledge or roll back. ``previous``: everything up to the last id named."""

    subscription: Number
    spans: BoundedSpans
    roll_back: bool = False
    previous: bool = False


class Hold(Request[Outstanding], frozen=True):
    """A sole client takes the outstanding events from ``first_id`` up to ``end_id`` into its
    hands; answered with those it has of them."""

    subscription: Number
    first_id: EventId
    end_id: EndId


class Bury(Request[int], frozen=True):
    """Send events to the dead event store (SEM T10); answered by how many."""

    subscription: Number
    spans: BoundedSpans
    reason: str
    """Cut where it is long."""
