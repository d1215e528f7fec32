"""Base classes of messages: commands, and facts about channels, places of clients and the realm."""

from __future__ import annotations

from msgspec import Struct


class Command(Struct, frozen=True):
    """A request to a channel, by a client, an administrator or the clock."""


class Fact(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A change of a channel that has happened. Facts are all that is ever stored."""


class PlaceFact(Struct, frozen=True, tag=True, array_like=True):
    """A change of a client's place on a channel that the next owner of the shard must know of.

    A realm on one machine forgets its sessions when it ends. In a cluster, clients reconnect to the
    next owner after some seconds, and until then their seats are reserved (SEM N6).
    """


class RealmFact(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A change of the namespace that has happened."""
