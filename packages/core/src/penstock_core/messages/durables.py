"""Creating, purging and deleting durables of one channel."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.durable_attributes import DurableAttributes


class AddDurable(DurableAttributes, Command, frozen=True):
    """Create a durable on a channel."""

    name: str
    kind: str
    """Name of the durable's type."""
    start_id: int = 0
    """The first id that the durable wants; the shell has resolved "latest" and times to an id."""
    selector: str = ""
    matched: Spans = ()
    """Stored events at or after ``start_id`` that match the selector; empty without a selector."""
    persistent: bool | None = None
    """Whether the durable survives a restart. None means that it does if the channel's ids survive
    (SEM D3)."""


class RemoveDurable(Command, frozen=True):
    """Delete a durable."""

    name: str


class PurgeOutstanding(Command, frozen=True):
    """Remove ``spans`` from the outstanding events of one durable; other durables keep them."""

    name: str
    spans: Spans


class DurableCreated(DurableAttributes, Fact, frozen=True):
    name: str
    kind: str
    start_id: int
    selector: str = ""
    matched: Spans = ()
    persistent: bool = True


class DurableDeleted(Fact, frozen=True):
    name: str
