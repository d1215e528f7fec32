"""Transactions over several channels and queues (SEM X1, X2)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock_core.api.requests import Request
from penstock_core.bounds import BATCHES_MAX, ENTRIES_MAX, Name, Number
from penstock_core.ids.ids import BoundedSpans, Span
from penstock_core.vocabulary.identities import ChannelNumber


class TransactionPart(Struct, frozen=True, array_like=True):
    """The events of a transaction for one channel or queue: batches in the frame's body, or stages
    of events that the client has sent before (:class:`StageEvents`)."""

    channel: ChannelNumber
    schema: Number
    sizes: Annotated[tuple[Number, ...], Meta(max_length=BATCHES_MAX)]
    """Size of each batch in the frame's body, in bytes."""
    stages: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)] = ()
    """Names of the stages, in the order of publishing."""


class Leaving(Struct, frozen=True, array_like=True):
    """Events that leave a channel or queue with the transaction, which fails if one of them is not
    stored."""

    channel: ChannelNumber
    redriven: BoundedSpans
    """Ids of dead events that the transaction publishes again (SEM T10)."""
    purged: BoundedSpans
    """Ids of events that the transaction removes (SEM T9)."""


class TransactionInfo(Struct, frozen=True):
    """The outcome of a transaction (SEM X2)."""

    state: Literal["open", "committed", "aborted"]
    spans: tuple[tuple[int, Span], ...] = ()
    """The ids assigned to the transaction's events, by channel number; empty unless the transaction
    is committed."""


class BeginTransaction(Request[None], frozen=True):
    """Begin a transaction (SEM X1)."""

    transaction: Name
    """Name of the transaction, chosen by the client; never used again."""
    channels: Annotated[tuple[ChannelNumber, ...], Meta(max_length=ENTRIES_MAX)]
    """The channels that the transaction will publish to."""


class CommitTransaction(Request[TransactionInfo], frozen=True):
    """Commit a transaction. The body has the batches of all parts, one after the other (SEM X1)."""

    transaction: Name
    parts: Annotated[tuple[TransactionPart, ...], Meta(max_length=ENTRIES_MAX)]
    leaving: Annotated[tuple[Leaving, ...], Meta(max_length=ENTRIES_MAX)] = ()


class AbortTransaction(Request[None], frozen=True):
    """End a transaction without publishing its events (SEM X2)."""

    transaction: Name


class DescribeTransaction(Request[TransactionInfo], frozen=True):
    """Query the outcome of a transaction (SEM X2)."""

    transaction: Name
