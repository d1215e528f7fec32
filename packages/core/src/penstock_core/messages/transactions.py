"""Ends of transactions, and publishes to several stores in one step (SEM X)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Span
from penstock_core.messages.kinds import RealmFact


class Ended(Struct, frozen=True, array_like=True):
    """The outcome of one transaction."""

    transaction: str
    at_us: int
    committed: bool
    """Whether the transaction was committed; if not, it was aborted."""
    spans: tuple[tuple[int, Span], ...] = ()
    """The ids that the events of the transaction got, by channel id."""


class TransactionEnded(RealmFact, frozen=True):
    """The outcome of a transaction (SEM X2)."""

    ended: Ended


StoreSpans = tuple[tuple[int, Span], ...]
"""The ids that the events of a publish got, by channel id."""


class StagesCommitted(RealmFact, frozen=True):
    """Stages of several stores have been published in one step (SEM X3)."""

    producer: str
    sequence: int
    at_us: int
    spans: StoreSpans
