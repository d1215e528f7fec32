"""Requests that read: pages of events, sums over them, scheduled events, the state of a key.

Events in answers are objects of ``penstock_core.columns.events.event``, a layer above the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Kind, Request
from penstock_core.bounds import Count, EventId, GivenName, SelectorText
from penstock_core.vocabulary.identities import ChannelNumber
from penstock_core.vocabulary.start_positions import AnyStart


class BrowsedEvents(Struct, frozen=True, kw_only=True):
    """A page of events, in order."""

    events: Sequence[Any]
    first_id: int
    """The lowest id that the page covers."""
    end_id: int
    """The id after the page, which contains all matching stored events from ``first_id`` to below
    this id."""
    next_id: int | None
    """First id of the next page; with ``newest``, the id below which the next page ends. None if
    this is the last page."""


class BrowseEvents(Request[BrowsedEvents], frozen=True):
    """Read a page of matching stored events, without settling or counting them (SEM E6)."""

    channel: ChannelNumber
    start: AnyStart
    limit: Count
    selector: SelectorText = ""
    end_id: EventId | None = None
    """The id below which the page ends; None for all events."""
    newest: bool = False
    """Whether to read the last events instead of the first."""


class BrowseOutstanding(Request[BrowsedEvents], frozen=True):
    """Read a page of the outstanding events of a durable, or of a queue (whose durable is called
    ""), without changing them (SEM D16, Q4)."""

    channel: ChannelNumber
    durable: GivenName
    limit: Count
    first_id: EventId = 0
    selector: SelectorText = ""


class ReadEvent(Request[Any], frozen=True):
    """Read one stored event."""

    channel: ChannelNumber
    event_id: EventId


class PopEvents(Request[Sequence[Any]], frozen=True):
    """Take events off a queue for good (SEM Q1): the realm commits them before it answers."""

    channel: ChannelNumber
    count: Count
    timeout_s: float = 0.0
    """Longest wait in seconds if no event is available."""
    selector: SelectorText = ""


class WatchEvents(Request[None], frozen=True):
    """Read events as they are published, without effect on other clients, until the client stops
    watching."""

    channel: ChannelNumber
    start: AnyStart
    credit: Count


class ReadKeyState(Request[Any], frozen=True):
    """Read the event with the current state of one key of a merge channel (SEM K2, K5)."""

    channel: ChannelNumber
    key: Any


class DeadGroup(Struct, frozen=True, kw_only=True):
    """Dead events with one original store, cause and reason."""

    store: str
    """The original store of these events."""
    cause: str
    """The cause of death: ``expired``, ``evicted``, ``redelivery_limit``, ``rejected``, …"""
    reason: str
    """The client's reason for rejecting the events; empty for other causes."""
    events: int
    """Number of these events."""
    first_id: int
    last_id: int
    oldest: Annotated[datetime, Meta(tz=True)]
    """Time at which the first of these events died."""
    newest: Annotated[datetime, Meta(tz=True)]
    """Time at which the last of these events died."""


class DeadSummary(Struct, frozen=True, kw_only=True):
    """Counts of the dead events on a store."""

    events: int
    """Number of dead events that were examined. The groups may sum to less, because only the
    first 1,000 groups are listed."""
    is_complete: bool
    """Whether all dead events of the store were counted."""
    groups: list[DeadGroup]


class SummarizeDead(Request[DeadSummary], frozen=True):
    """Count the dead events on a store by original store and cause (SEM T6)."""

    channel: ChannelNumber
    limit: Count
    """Maximum number of dead events to examine; the oldest are examined first."""


class SelectorName(Struct, frozen=True, kw_only=True):
    """A header or property that a selector reads."""

    name: str
    kind: Literal["header", "property"]
    types: tuple[str, ...] | None
    """Types of the stored column, empty if no event has had it; null if the request names no
    channel."""


class Chosen(Struct, frozen=True, kw_only=True):
    """The stored events that a selector matches."""

    channel: str
    events: int
    """Number of stored events, including those that do not match."""
    matches: int
    """Number of examined events that match."""
    first_ids: list[int]
    """The lowest ids that match."""
    is_complete: bool
    """Whether all stored events were examined; false if that took too long or matched too many."""


class SelectorAnswer(Struct, frozen=True, kw_only=True):
    """The explanation of a selector, or of its error."""

    valid: bool
    message: str = ""
    """The error if the selector is not valid."""
    line: int | None = None
    column: int | None = None
    """Line and column of the error, both from 1."""
    expected: str = ""
    """The words or symbols that would be valid at the position of the error."""
    chooses: tuple[str, ...] = ()
    """The selector in words."""
    names: tuple[SelectorName, ...] = ()
    remarks: tuple[str, ...] = ()
    """Parts that can never match on this channel, with the reasons."""
    chosen: Chosen | None = None


class ExplainSelector(Request[SelectorAnswer], frozen=True):
    """Explain a selector or its error, and show which events it matches on a channel or queue if
    one is named."""

    selector: SelectorText
    channel: GivenName = ""


class WaitingEvents(Struct, frozen=True):
    """The scheduled events of one channel or queue, in order."""

    store: ChannelOpened
    kind: Kind
    events: Sequence[Any]


class ScheduledPage(Struct, frozen=True):
    """A page of scheduled events, sorted by the name of their destination and by number."""

    waiting: tuple[WaitingEvents, ...]
    next: tuple[int, str] | None
    """Number and name at which the next page begins; None if this is the last page."""


class ListScheduled(Request[ScheduledPage], frozen=True):
    """Read the scheduled events (SEM X4) of all stores that the client may read, or of one of
    them."""

    limit: Count
    channel: GivenName | None = None
    first_number: EventId = 0
    first_name: GivenName = ""


class CancelScheduled(Request[None], frozen=True):
    """Remove an event from the schedule of a channel or queue."""

    channel: ChannelNumber
    number: EventId
