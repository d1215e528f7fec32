"""Transactions and how they ended (SEM X1, X2).

An open one is soft: it says which stores had room when it began, and is forgotten on restart.
How one ended is a fact, remembered for a day.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.access.name_owners import owner_of, plain
from penstock_core.messages.transactions import Ended
from penstock_core.vocabulary.errors import (
    AlreadyAborted,
    AlreadyCommitted,
    LimitReached,
    NoSuchTransaction,
)

REMEMBERED_US = 24 * 3_600 * 1_000_000
"""Microseconds for which the outcome of a transaction can be queried."""
OPEN_MAX_US = REMEMBERED_US
"""Microseconds after which an open transaction that nobody ends is forgotten."""

OPEN_OF_ONE_MAX = 10_000
"""Transactions one user may have open; all of them, where the realm does not know its users."""


class OpenTransaction(Struct, frozen=True):
    at_us: int
    below_capacity: frozenset[int]
    """The stores that were not full when it began: it may overshoot them (SEM T4)."""


class TransactionTable:
    def __init__(self) -> None:
        self._open: dict[str, OpenTransaction] = {}
        self._ended: dict[str, Ended] = {}

    # --- asking --------------------------------------------------------------------------

    def begun(self, transaction: str) -> OpenTransaction:
        """An open transaction. Raises ``AlreadyCommitted``, ``AlreadyAborted``,
        ``NoSuchTransaction``."""
        ended = self._found(transaction)
        if ended is not None:
            if ended.committed:
                raise AlreadyCommitted(f"transaction {plain(transaction)} is already committed")
            raise AlreadyAborted(f"transaction {plain(transaction)} is already aborted")
        begun = self._open.get(transaction)
        if begun is None:
            raise NoSuchTransaction(
                f"there is no transaction {plain(transaction)}: it was never begun, ended more "
                "than a day ago, or the realm has restarted since or another node has taken over; "
                "begin it again"
            )
        return begun

    def ended(self, transaction: str) -> Ended | None:
        """How a transaction ended; None: it is open. Raises ``NoSuchTransaction``."""
        if (ended := self._found(transaction)) is not None:
            return ended
        self.begun(transaction)
        return None

    def _found(self, transaction: str) -> Ended | None:
        """How the transaction ended, if it is known. One kept from before the realm had users is
        found by everybody."""
        return self._ended.get(transaction) or self._ended.get(plain(transaction))

    # --- changes -------------------------------------------------------------------------

    def begin(self, transaction: str, at_us: int, below_capacity: Collection[int]) -> None:
        """Begin a transaction (soft state). A repetition is not an error, because the answer may
        have been lost; a transaction that grows names further stores as it reaches them."""
        self._forget(at_us)
        if self._found(transaction) is not None:
            self.begun(transaction)
        below = frozenset(below_capacity)
        known = self._open.get(transaction)
        if known is None:
            self._refuse_more(owner_of(transaction))
        if known is not None:
            at_us, below = known.at_us, known.below_capacity | below
        self._open[transaction] = OpenTransaction(at_us, below)

    def _refuse_more(self, owner: str) -> None:
        """Raises ``LimitReached``."""
        if len(self._open) < OPEN_OF_ONE_MAX:
            return
        own = sum(owner_of(name) == owner for name in self._open)
        if own >= OPEN_OF_ONE_MAX:
            raise LimitReached(
                f"{own} transactions are open, which is the limit; commit or abort some"
            )

    def apply(self, ended: Ended) -> None:
        self._open.pop(ended.transaction, None)
        self._ended[ended.transaction] = ended
        self._forget(ended.at_us)

    def lower(self, now_us: int) -> None:
        """Take transactions that ended later than ``now_us`` as ended then: an earlier start of the
        realm had a clock that was ahead. The order of time holds again."""
        for name, ended in self._ended.items():
            if ended.at_us > now_us:
                self._ended[name] = replace(ended, at_us=now_us)

    def _forget(self, now_us: int) -> None:
        _drop_before(self._ended, now_us - REMEMBERED_US)
        _drop_before(self._open, now_us - OPEN_MAX_US)

    def state(self) -> tuple[Ended, ...]:
        return tuple(self._ended.values())


def _drop_before(known: dict[str, OpenTransaction] | dict[str, Ended], horizon_us: int) -> None:
    """Drop old entries. They are in the order of time, so only those that are dropped are
    examined."""
    while known:
        oldest = next(iter(known))
        if known[oldest].at_us > horizon_us:
            return
        del known[oldest]
