"""Delivering events to the clients of durables and to plain subscribers."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command


class SetDemand(Command, frozen=True):
    """A synchronous consumer wants ``count`` events from now on; 0 cancels. For a plain subscriber,
    whose credit says how many it wants, 0 asks to be told once it has everything there is now."""

    subscription: int
    count: int
    at_once: bool = False
    """With 0: nothing more is sent, and nobody is told."""


class StallSession(Command, frozen=True):
    """The connection of a session is full, or can take more again."""

    session: str
    stalled: bool


class Skip(Command, frozen=True):
    """The shell did not send these of a grant: not selected, or unreadable. They take no credit."""

    subscription: int
    spans: Spans


class Withhold(Command, frozen=True):
    """The shell did not send these granted events, nor any behind them: the client has no room, its
    selector takes long, or its connection is lost. They come again, perhaps to another client."""

    subscription: int
    spans: Spans
    is_full: bool
    """Whether nothing more is granted until there is room (:class:`GrantCredit`)."""
    is_choosing: bool = False
    """Nothing is granted until its selector has been put to these (:class:`EndChoosing`)."""


class EndChoosing(Command, frozen=True):
    """The selector of a subscription has been put to what was withheld for it."""

    subscription: int


class SingleOut(Command, frozen=True):
    """What comes next may be for these followers, and for no others."""

    subscriptions: tuple[int, ...]


class AssignLanes(Command, frozen=True):
    """The shell has looked at events of a durable with ``order_by``: which lanes they are in."""

    durable: str
    through: int
    """Id below which all due events have been examined."""
    keys: Sequence[Hashable]
    """One key for each lane; equal keys always mean the same lane."""
    ends: Sequence[int]
    """End of each lane in ``ids``."""
    ids: array[int]
    """Lane by lane, ascending in each."""


class HoldEvents(Command, frozen=True):
    """A sole client has the outstanding events of ``span`` in its hands from now on."""

    subscription: int
    span: Span


class ConfirmRecall(Command, frozen=True):
    """The client knows of the oldest :class:`Recall` it had not confirmed."""

    subscription: int
