"""Requests that read: pages of events, sums over them, scheduled events, the state of a key.

An event in an answer is one of ``penstock_core.columns.events.event``, which is above the API.
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
    end_id: int
    """``events`` has all matching stored events from ``first_id`` up to this id."""
    next_id: int | None
    """First id of the next page, or with ``newest`` the id below it; None: this is the last
    page."""


class BrowseEvents(Request[BrowsedEvents], frozen=True):
    """Stored events that match, a page of them. It takes nothing and counts nowhere (SEM E6)."""

    channel: ChannelNumber
    start: AnyStart
    limit: Count
    selector: SelectorText = ""
    end_id: EventId | None = None
    """Only those below this id."""
    newest: bool = False
    """The last ones instead of the first."""


class BrowseOutstanding(Request[BrowsedEvents], frozen=True):
    """What is outstanding at a durable, or on a queue (its durable is called ""), a page of it;
    changes nothing (SEM D16, Q4)."""

    channel: ChannelNumber
    durable: GivenName
    limit: Count
    first_id: EventId = 0
    selector: SelectorText = ""


class ReadEvent(Request[Any], frozen=True):
    """One stored event."""

    channel: ChannelNumber
    event_id: EventId


class PopEvents(Request[Sequence[Any]], frozen=True):
    """Take events off a queue for good (SEM Q1): they are committed before they are answered."""

    channel: ChannelNumber
    count: Count
    timeout_s: float = 0.0
    """Longest wait if no event is available."""
    selector: SelectorText = ""


class WatchEvents(Request[None], frozen=True):
    """See events as they are published, until the viewer goes; nobody notices."""

    channel: ChannelNumber
    start: AnyStart
    credit: Count


class ReadKeyState(Request[Any], frozen=True):
    """The event that holds the state of one key of a merge channel now (SEM K2, K5)."""

    channel: ChannelNumber
    key: Any


class DeadGroup(Struct, frozen=True, kw_only=True):
    store: str
    """The store that these events came from."""
    cause: str
    """The cause: ``expired``, ``evicted``, ``redelivery_limit``, ``rejected``, …"""
    reason: str
    """The reason that the client gave for rejecting them; empty for other causes."""
    events: int
    first_id: int
    last_id: int
    oldest: Annotated[datetime, Meta(tz=True)]
    newest: Annotated[datetime, Meta(tz=True)]
    """Time at which the newest of them died."""


class DeadSummary(Struct, frozen=True, kw_only=True):
    events: int
    """Number of counted events."""
    is_complete: bool
    groups: list[DeadGroup]


class SummarizeDead(Request[DeadSummary], frozen=True):
    """The dead events on a store, by where they came from and why they died (SEM T6)."""

    channel: ChannelNumber
    limit: Count
    """Most dead events that are examined; the newest are left out first."""


class SelectorName(Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["header", "property"]
    types: tuple[str, ...] | None
    """Types of the stored column, empty if no event had it; null: no channel was named."""


class Chosen(Struct, frozen=True, kw_only=True):
    """What the selector chooses of the events stored now."""

    channel: str
    events: int
    """Events stored, matching or not."""
    matches: int
    first_ids: list[int]
    is_complete: bool
    """Whether all stored events were examined; otherwise it took too long, or matched too many."""


class SelectorAnswer(Struct, frozen=True, kw_only=True):
    valid: bool
    message: str = ""
    """The error if the selector is not valid."""
    line: int | None = None
    column: int | None = None
    """Line and column of the error, both from 1."""
    expected: str = ""
    chooses: tuple[str, ...] = ()
    """The selector in words."""
    names: tuple[SelectorName, ...] = ()
    remarks: tuple[str, ...] = ()
    """Parts that can never match there, and why."""
    chosen: Chosen | None = None


class ExplainSelector(Request[SelectorAnswer], frozen=True):
    """What a selector means, or where it is wrong; and what it would choose on a channel or queue,
    if one is named."""

    selector: SelectorText
    channel: GivenName = ""


class WaitingEvents(Struct, frozen=True):
    """What waits to be published on one channel or queue, in order."""

    store: ChannelOpened
    kind: Kind
    events: Sequence[Any]


class ScheduledPage(Struct, frozen=True):
    """What waits to be published, by the name of where it goes, and by its number."""

    waiting: tuple[WaitingEvents, ...]
    next: tuple[int, str] | None
    """Number and name at which the next page begins; None: this is the last page."""


class ListScheduled(Request[ScheduledPage], frozen=True):
    """What waits to be published (SEM X4) on the stores that may be read; or on one of them."""

    limit: Count
    channel: GivenName | None = None
    first_number: EventId = 0
    first_name: GivenName = ""


class CancelScheduled(Request[None], frozen=True):
    """Take an event off the schedule of a channel or queue."""

    channel: ChannelNumber
    number: EventId
