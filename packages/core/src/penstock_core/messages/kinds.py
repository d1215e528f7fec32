"""Kinds of messages: commands, and facts of a channel, of a client's place and of the realm."""

from __future__ import annotations

from msgspec import Struct


class Command(Struct, frozen=True):
    """Something a client, an administrator or the clock asks of a channel."""


class Fact(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Something that has happened to a channel. Facts are all that is ever stored."""


class PlaceFact(Struct, frozen=True, tag=True, array_like=True):
    """Something that has happened to a client's place on a channel, where the next owner of a shard
    has to know it.

    A realm on one machine forgets its sessions when it ends. In a cluster their clients come back
    to the next owner after some seconds, and until then nobody else gets what is theirs (SEM N6).
    """


class RealmFact(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Something that has happened to the namespace."""
