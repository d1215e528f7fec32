"""Headers of requests about transactions (SEM X1, X2)."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.messages import Spans
from penstock.wire.native.headers import Request


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
