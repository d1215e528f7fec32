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
    """An open subscription: its first id, and the end of a browse."""

    first_id: int
    """The first id that the subscription reads."""
    stop_id: int | None
    """The id below which a browse ends; None if it is not a browse."""
    strict_order: bool = False
    """Whether delivered events may be recalled: the durable has ``strict_order`` or ``order_by``,
    or events must be acknowledged in time (SEM D11, D19)."""
    confirm: bool = False
    """Whether the client must confirm arrived events (SEM J5)."""
    cumulative: bool = False
    """Whether acknowledging an event settles all earlier ones, so that rollbacks must be sent
    before acknowledgements."""
    ack_timeout_ms: int = 0
    """Longest time for acknowledging an event, in ms (SEM D19); 0 means no limit."""


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
    """Whether the client can confirm arrived events (:class:`Credit`, SEM J5)."""
    deltas: bool = False
    """Whether the client accepts changes of a merge channel as deltas (SEM K3)."""
    bytes_max: Count = 0
    """Maximum number of bytes of deliveries that the client can buffer, until it reports that it
    has processed some (:class:`Credit`); a single event may be larger. 0 means that only the credit
    limits the deliveries."""
    bytes_held: Count = 0
    """Bytes that the client still holds from an earlier connection."""


class Attach(Request[Subscribed], frozen=True):
    """Take a seat at a durable."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    window: Window | None = None
    pull: bool = False
    selector: SelectorText = ""
    auto_ack: bool = False
    """Whether the client library acknowledges events automatically (SEM D5, J7)."""
    sole: bool = False
    """Whether to hold the durable as a whole: events are not delivered; the client requests them
    with :class:`Hold`."""
    bytes_max: Count = 0
    """Maximum number of bytes of deliveries that the client can buffer, as in :class:`Subscribe`;
    ignored for clients that demand events."""
    ack_timeout_ms: Count = 0
    """Queues: longest time in milliseconds for which this reader may hold an event (SEM D19); 0
    means no limit."""


class BrowseDurable(Request[Subscribed], frozen=True):
    """Browse the outstanding events of a durable, or of a queue (whose durable is called ""), in
    order, without changing them (SEM D16, Q4)."""

    channel: ChannelNumber
    subscription: Number
    durable: GivenName
    credit: Count
    selector: SelectorText = ""
    bytes_max: Count = 0
    """Maximum number of bytes of deliveries that the client can buffer, as in
    :class:`Subscribe`."""


class Unsubscribe(Request[None], frozen=True):
    """End a subscription."""

    subscription: Number


class Settle(Request[None], frozen=True):
    """Acknowledge or roll back the events of ``spans``; with ``previous``, also all earlier events
    that the subscription holds."""

    subscription: Number
    spans: BoundedSpans
    roll_back: bool = False
    previous: bool = False
    delay_ms: Count | None = None
    """Delay of the redelivery of rolled-back events in milliseconds (SEM D18); None means the delay
    of the durable's backoff."""


class Extend(Request[int], frozen=True):
    """Extend the time to acknowledge held events to ``time_ms`` from now (SEM D19). The answer is
    the number of events still held."""

    subscription: Number
    spans: BoundedSpans
    time_ms: Count


class Hold(Request[Outstanding], frozen=True):
    """Hold the outstanding events from ``first_id`` to below ``end_id``, as the only client of a
    durable. The answer lists these events."""

    subscription: Number
    first_id: EventId
    end_id: EndId


class Bury(Request[int], frozen=True):
    """Reject events: send them to the dead event store (SEM T11); the answer is their number."""

    subscription: Number
    spans: BoundedSpans
    reason: str
    """Reason of the rejection; a long text is cut."""
