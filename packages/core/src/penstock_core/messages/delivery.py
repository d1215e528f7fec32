"""Delivering events to the clients of durables and to plain subscribers."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command


class SetDemand(Command, frozen=True):
    """A synchronous consumer requests ``count`` events; 0 cancels the request. A plain subscriber
    requests events by credit. Its demand of 0 requests a report once it has received all current
    events."""

    subscription: int
    count: int
    at_once: bool = False
    """Whether a demand of 0 stops the sending immediately and without a report."""


class StallSession(Command, frozen=True):
    """The send buffer of a session's connection is full, or has free space again."""

    session: str
    stalled: bool
    """Whether the buffer is full."""


class Skip(Command, frozen=True):
    """The shell did not send these granted events, because they do not match or are unreadable.
    The client gets their credit back."""

    subscription: int
    spans: Spans


class Withhold(Command, frozen=True):
    """The shell did not send these granted events, nor any later ones: the client has no room, its
    selector is slow, or its connection is lost. They are granted again, perhaps to another
    client."""

    subscription: int
    spans: Spans
    is_full: bool
    """Whether no event is granted until the client has room (:class:`GrantCredit`)."""
    is_choosing: bool = False
    """Whether no event is granted until its selector has been applied to these
    (:class:`EndChoosing`)."""


class EndChoosing(Command, frozen=True):
    """The selector of a subscription has been applied to the events withheld for it."""

    subscription: int


class SingleOut(Command, frozen=True):
    """The next events may match these followers and no others."""

    subscriptions: tuple[int, ...]


class AssignLanes(Command, frozen=True):
    """The lanes of events of a durable with ``order_by``, which the shell has examined."""

    durable: str
    examined_end: int
    """Id below which all due events have been examined."""
    keys: Sequence[Hashable]
    """One key for each lane; equal keys always mean the same lane."""
    ends: Sequence[int]
    """Index in ``ids`` after the last id of each lane, in the order of ``keys``."""
    ids: array[int]
    """Event ids, lane by lane, ascending within a lane."""


class HoldEvents(Command, frozen=True):
    """A client that holds the durable as a whole takes the outstanding events of ``span``."""

    subscription: int
    span: Span


class ConfirmRecall(Command, frozen=True):
    """The client confirms its oldest unconfirmed :class:`Recall`."""

    subscription: int
