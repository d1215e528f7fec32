"""Requests about subscriptions: open and end them, and settle events."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.api.durables import Outstanding
from penstock_core.api.requests import Request
from penstock_core.bounds import (
    Count,
    EndId,
    EventId,
    GivenName,
    LastId,
    Number,
    SelectorText,
    Window,
)
from penstock_core.ids.ids import BoundedSpans
from penstock_core.vocabulary.identities import ChannelNumber
from penstock_core.vocabulary.start_positions import AnyStart


class Subscribed(Struct, frozen=True):
    """A subscription is open: where it begins, and where a browse ends."""

    first_id: int
    stop_id: int | None
    strict_order: bool = False
    """A seat at a durable with ``strict_order`` or ``order_by``, or one where events have to be
    acknowledged in time: delivered events may be recalled (SEM D11, D19)."""
    confirm: bool = False
    """Whether the client has to confirm which events have arrived (SEM J5)."""
    cumulative: bool = False
    """A seat where acknowledging an event settles all earlier ones, so rollbacks have to be sent
    before acknowledgements."""
    ack_timeout_ms: int = 0
    """Time in which the client must acknowledge an event (SEM D19); 0: no limit."""


class Subscribe(Request[Subscribed], frozen=True):
    """Read a channel: live, or as a browse up to and including ``last_id`` (-1: to the last
    event)."""

    channel: ChannelNumber
    subscription: Number
    start: AnyStart
    credit: Count
    selector: SelectorText = ""
    browse: bool = False
    last_id: LastId | None = None
    confirms: bool = False
    """The client confirms which events have arrived if asked to (:class:`Credit`, SEM J5)."""
    deltas: bool = False
    """The client accepts changes of a merge channel as deltas (SEM K3)."""
    bytes_max: Count = 0
    """Most bytes of deliveries that the client has room for, until it reports that it has taken
    some (:class:`Credit`); a single event may be larger. 0: no limit but the credit."""
    bytes_held: Count = 0
    """Bytes that it still has from an earlier connection."""


class Attach(Request[Subscribed], frozen=True):
    """Take a seat at a durable."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    window: Window | None = None
    pull: bool = False
    selector: SelectorText = ""
    auto_ack: bool = False
    """The client acknowledges events as it hands them out, without being told to (SEM D5, J7)."""
    sole: bool = False
    """Hold the durable alone: nothing is delivered, events are taken by :class:`Hold`."""
    bytes_max: Count = 0
    """See :class:`Subscribe`; ignored for clients that demand events."""
    ack_timeout_ms: Count = 0
    """Readers of queues: how long this one may have an event in hand (SEM D19); 0: no limit."""


class BrowseDurable(Request[Subscribed], frozen=True):
    """Browse what is outstanding at a durable, or on a queue, whose durable is called "", in order;
    this changes nothing (SEM D16, Q4)."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    credit: Count
    selector: SelectorText = ""
    bytes_max: Count = 0
    """See :class:`Subscribe`."""


class Unsubscribe(Request[None], frozen=True):
    subscription: Number


class Settle(Request[None], frozen=True):
    """Acknowledge or roll back events. With ``previous``: everything up to the last id."""

    subscription: Number
    spans: BoundedSpans
    roll_back: bool = False
    previous: bool = False
    delay_ms: Count | None = None
    """Delay of the redelivery of rolled-back events (SEM D18); None: that of the durable's
    backoff."""


class Extend(Request[int], frozen=True):
    """Have so much time from now on to acknowledge events in hand (SEM D19); the answer is how many
    of them are in hand still."""

    subscription: Number
    spans: BoundedSpans
    time_ms: Count


class Hold(Request[Outstanding], frozen=True):
    """Take the outstanding events from ``first_id`` up to ``end_id``, as the only client of a
    durable; the answer has those that were taken."""

    subscription: Number
    first_id: EventId
    end_id: EndId


class Bury(Request[int], frozen=True):
    """Reject events: send them to the dead event store (SEM T11); the answer is their number."""

    subscription: Number
    spans: BoundedSpans
    reason: str
    """Why they are rejected; a long text is cut."""
