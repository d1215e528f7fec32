"""Headers of requests about transactions, and of what is staged for one step (SEM X1, X3)."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.messages import Spans
from penstock.wire.native.headers import Request


class CommitStages(Request, frozen=True, tag=22):
    """Publish staged batches, in the order given, in one step (SEM X1, X3)."""

    channel: int
    producer: str
    sequence: int
    stages: tuple[str, ...]


class DropStages(Request, frozen=True, tag=23):
    stages: tuple[str, ...]


class BeginTransaction(Request, frozen=True, tag=24):
    transaction: str
    """Chosen by the client; unique for ever."""
    channels: tuple[int, ...]
    """Where it will publish."""


class TransactionPart(Struct, frozen=True, array_like=True):
    """Events of a transaction for one channel or queue: batches in the frame's body, or staged."""

    channel: int
    schema: int
    sizes: tuple[int, ...]
    stages: tuple[str, ...] = ()


class Leaving(Struct, frozen=True, array_like=True):
    """Events that leave a channel or queue with a transaction, if all of them are there."""

    channel: int
    redriven: Spans
    """Published again by it (SEM T10)."""
    purged: Spans
    """Not wanted any more (SEM T9)."""


class CommitTransaction(Request, frozen=True, tag=25):
    """Body: the batches of all parts, one after the other (SEM X1)."""

    transaction: str
    parts: tuple[TransactionPart, ...]
    leaving: tuple[Leaving, ...] = ()


class AbortTransaction(Request, frozen=True, tag=26):
    transaction: str


class DescribeTransaction(Request, frozen=True, tag=27):
    """What became of a transaction (SEM X2)."""

    transaction: str


class CommitStagedParts(Request, frozen=True, tag=29):
    """Publish staged batches of several channels, in one step and once in the realm (SEM X3)."""

    producer: str
    sequence: int
    parts: tuple[tuple[int, tuple[str, ...]], ...]
    """Channels, and their stages in order."""
