"""Creating, editing and deleting channels and queues."""

from __future__ import annotations

from penstock_core.messages.kinds import Command, Fact, RealmFact
from penstock_core.vocabulary.definitions import Definition


class Edit(Command, frozen=True):
    """Replace the attributes of a channel or queue."""

    definition: Definition


class Edited(Fact, frozen=True):
    definition: Definition


class ChannelCreated(RealmFact, frozen=True):
    number: int
    """Id of the channel, which is never reused, also not for a new channel with the name of a
    deleted channel."""
    name: str
    definition: Definition


class ChannelDeleted(RealmFact, frozen=True):
    number: int
