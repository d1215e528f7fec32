"""Durables of one channel: created, emptied and deleted."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.durable_attributes import DurableAttributes


class AddDurable(DurableAttributes, Command, frozen=True):
    name: str
    kind: str
    start_id: int = 0  # first id of interest: the shell has resolved latest, and times
    selector: str = ""
    matched: Spans = ()
    """With a selector: the stored events at or after ``start_id`` it matches."""
    persistent: bool | None = None  # None: where the channel's ids survive (SEM D3)


class RemoveDurable(Command, frozen=True):
    name: str


class PurgeOutstanding(Command, frozen=True):
    """Take ``spans`` off what is outstanding at a durable; the others keep them."""

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
