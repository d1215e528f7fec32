"""Leases: events that are fetched for a limited time and settled by separate requests (SEM H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import Count, EventId, GivenName, Name, SelectorText, Text
from penstock_core.ids.ids import BoundedSpans
from penstock_core.vocabulary.identities import ChannelNumber

How = Literal["ack", "roll_back", "reject"]
"""A way of settling events: acknowledge, return, or reject with a reason."""


class Fetched(Struct, frozen=True, kw_only=True):
    """Fetched events, and the client's lease on them."""

    lease: str = ""
    """Name of the lease, for settling its events; empty if no event arrived."""
    batches: Sequence[Any] = ()
    """Batches of ``penstock_core.columns.events.batch``, a layer above the API."""
    channels: Sequence[ChannelOpened] = ()
    """The channel of each batch, if they are from several channels."""
    count: int = 0
    """Number of fetched events."""
    lease_ms: int = 0
    """Duration of the lease; less than requested if the durable's ``ack_timeout`` is shorter."""
    ends_us: int = 0
    """Expiry of the lease, in microseconds since 1970; unsettled events are then returned."""


class FetchEvents(Request[Fetched], frozen=True):
    """Fetch events of a durable, or of a queue (whose durable is called ""), and hold them for
    ``lease_ms``."""

    channel: ChannelNumber
    durable: GivenName
    count: Count
    lease_ms: Count
    wait_ms: Count = 0
    """Longest wait in milliseconds if no event is available."""
    selector: SelectorText = ""
    """Selector of the fetch, for queues and durables that do not store a selector."""


class LeasedEvents(Struct, frozen=True):
    """Choice of events of a lease, by ids or up to an id. Without both, all events of the lease are
    chosen."""

    spans: BoundedSpans | None = None
    up_to: EventId | None = None
    """The highest chosen id; all lower ids are also chosen."""


class Settled(Struct, frozen=True, kw_only=True):
    """The result of settling or extending events of a lease."""

    count: int
    """Number of the chosen events that are settled in the requested way by now, or whose time is
    extended."""
    left: int
    """Number of events that the lease still holds."""
    ends_us: int | None
    """Time at which the last held events are returned, in microseconds since 1970; None if the
    lease has ended."""


class SettleLease(Request[Settled], frozen=True):
    """Settle events of a lease. A repeated request gets the same answer."""

    channel: ChannelNumber
    durable: GivenName
    lease: Name
    how: How
    chosen: LeasedEvents
    delay_ms: Count | None = None
    """Delay of the redelivery of rolled-back events in milliseconds (SEM D18); None means the delay
    of the durable's backoff."""
    reason: Text = ""
    """Why events are rejected (SEM T11)."""


class ExtendLease(Request[Settled], frozen=True):
    """Extend the time for events of a lease to ``time_ms`` from now (SEM D19)."""

    channel: ChannelNumber
    durable: GivenName
    lease: Name
    chosen: LeasedEvents
    time_ms: Count


# --- over a pattern -----------------------------------------------------------------------


class FetchFromPattern(Request[Fetched], frozen=True):
    """Fetch events of a durable over a pattern, from all its channels that the client may consume,
    and hold them for ``lease_ms`` (SEM H4)."""

    pattern: Text
    durable: GivenName
    count: Count
    lease_ms: Count
    wait_ms: Count = 0
    """Longest wait in milliseconds if no event is available."""
    selector: SelectorText = ""
    """Selector of the fetch, for durables that do not store a selector."""


class SettlePatternLease(Request[Settled], frozen=True):
    """Settle events of a lease over a pattern, on all named channels together or on none. A
    repeated request gets the same answer."""

    pattern: Text
    durable: GivenName
    lease: Name
    how: How
    channels: dict[Name, LeasedEvents] | None = None
    """The chosen events of each channel; None means all events of the lease."""
    delay_ms: Count | None = None
    """Delay of the redelivery of rolled-back events in milliseconds (SEM D18); None means the delay
    of the durable's backoff."""
    reason: Text = ""
    """Why events are rejected (SEM T11)."""


class ExtendPatternLease(Request[Settled], frozen=True):
    """Extend the time for events of a lease over a pattern to ``time_ms`` from now (SEM D19)."""

    pattern: Text
    durable: GivenName
    lease: Name
    time_ms: Count
    channels: dict[Name, LeasedEvents] | None = None
    """The chosen events of each channel; None means all events of the lease."""
