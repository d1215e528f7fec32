"""Creating, editing and deleting channels and queues."""

from __future__ import annotations

from penstock_core.messages.kinds import Command, Fact, RealmFact
from penstock_core.vocabulary.definitions import Definition


class Edit(Command, frozen=True):
    definition: Definition


class Edited(Fact, frozen=True):
    definition: Definition


class ChannelCreated(RealmFact, frozen=True):
    number: int
    """Never reused: a channel deleted and created again is another channel."""
    name: str
    definition: Definition


class ChannelDeleted(RealmFact, frozen=True):
    number: int
