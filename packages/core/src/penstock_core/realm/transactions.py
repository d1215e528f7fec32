"""Transactions and how they ended (SEM X1, X2).

An open one is soft: it says which stores had room when it began, and is forgotten on restart.
How one ended is a fact, remembered for a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

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
OPEN_STORES_OF_ONE_MAX: Final = 100_000
"""Stores with room at the begin, of all open transactions of one user."""
ENDED_OF_ONE_MAX: Final = 1_000_000
"""Outcomes and ranges of ids of one user that are remembered; beyond it, the oldest tenth is
forgotten."""


class OpenTransaction(Struct, frozen=True):
    at_us: int
    below_capacity: frozenset[int]
    """The stores that were not full when it began: it may overshoot them (SEM T4)."""


class TransactionTable:
    def __init__(self) -> None:
        self._open: dict[str, OpenTransaction] = {}
        self._ended: dict[str, Ended] = {}
        self._open_stores = 0
        """Stores in all open transactions."""
        self._ended_sizes: Counter[str] = Counter()
        """Outcomes and ranges of ids, by user."""

    # --- asking --------------------------------------------------------------------------

    def begun(self, transaction: str) -> OpenTransaction:
        """An open transaction. Raises ``AlreadyCommitted``, ``AlreadyAborted``,
        ``NoSuchTransaction``."""
        ended = self._outcome(transaction)
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
        if (ended := self._outcome(transaction)) is not None:
            return ended
        self.begun(transaction)
        return None

    def _outcome(self, transaction: str) -> Ended | None:
        """How the transaction ended, if it is known. One kept from before the realm had users is
        found by everybody."""
        return self._ended.get(transaction) or self._ended.get(plain(transaction))

    # --- changes -------------------------------------------------------------------------

    def begin(self, transaction: str, at_us: int, below_capacity: Collection[int]) -> None:
        """Begin a transaction (soft state). A repetition is not an error, because the answer may
        have been lost; a transaction that grows names further stores as it reaches them."""
        self._forget(at_us)
        if self._outcome(transaction) is not None:
            self.begun(transaction)
        below = frozenset(below_capacity)
        open_transaction = self._open.get(transaction)
        if open_transaction is None:
            self._refuse_more(owner_of(transaction))
        before = frozenset[int]()
        if open_transaction is not None:
            at_us, before = open_transaction.at_us, open_transaction.below_capacity
        self._refuse_stores(owner_of(transaction), len(below - before))
        self._open[transaction] = OpenTransaction(at_us, before | below)
        self._open_stores += len(below - before)

    def _refuse_more(self, owner: str) -> None:
        """Raises ``LimitReached``."""
        # All together are compared first, because counting those of one user visits each of them.
        if len(self._open) < OPEN_OF_ONE_MAX:
            return
        open_count = sum(owner_of(name) == owner for name in self._open)
        if open_count >= OPEN_OF_ONE_MAX:
            raise LimitReached(
                f"{open_count} transactions are open, which is the limit; commit or abort some"
            )

    def _refuse_stores(self, owner: str, more: int) -> None:
        """Raises ``LimitReached``."""
        if self._open_stores + more <= OPEN_STORES_OF_ONE_MAX:
            return
        named_count = sum(
            len(opened.below_capacity)
            for name, opened in self._open.items()
            if owner_of(name) == owner
        )
        if named_count + more > OPEN_STORES_OF_ONE_MAX:
            raise LimitReached(
                f"the open transactions would name {named_count + more} channels and queues; "
                f"allowed are {OPEN_STORES_OF_ONE_MAX}: commit or abort some"
            )

    def apply(self, ended: Ended) -> None:
        self._close(ended.transaction)
        self._forget_ended(ended.transaction)
        self._ended[ended.transaction] = ended
        owner = owner_of(ended.transaction)
        self._ended_sizes[owner] += _size_of(ended)
        self._forget(ended.at_us)
        if self._ended_sizes[owner] > ENDED_OF_ONE_MAX:
            self._forget_oldest(owner)

    def lower(self, now_us: int) -> None:
        """Take transactions that ended later than ``now_us`` as ended then: an earlier start of the
        realm had a clock that was ahead. The order of time holds again."""
        for name, ended in self._ended.items():
            if ended.at_us > now_us:
                self._ended[name] = replace(ended, at_us=now_us)

    def _forget(self, now_us: int) -> None:
        for name in _before(self._ended, now_us - REMEMBERED_US):
            self._forget_ended(name)
        for name in _before(self._open, now_us - OPEN_MAX_US):
            self._close(name)

    def _close(self, transaction: str) -> None:
        opened = self._open.pop(transaction, None)
        if opened is not None:
            self._open_stores -= len(opened.below_capacity)

    def _forget_ended(self, transaction: str) -> None:
        ended = self._ended.pop(transaction, None)
        if ended is not None:
            owner = owner_of(transaction)
            self._ended_sizes[owner] -= _size_of(ended)
            if not self._ended_sizes[owner]:
                del self._ended_sizes[owner]

    def _forget_oldest(self, owner: str) -> None:
        """Forget the oldest outcomes of a user, a tenth at a time, because all are examined."""
        for name in [name for name in self._ended if owner_of(name) == owner]:
            if self._ended_sizes[owner] <= ENDED_OF_ONE_MAX * 9 // 10:
                return
            self._forget_ended(name)

    def state(self) -> tuple[Ended, ...]:
        return tuple(self._ended.values())


def _size_of(ended: Ended) -> int:
    return 1 + len(ended.spans)


def _before(
    known: Mapping[str, OpenTransaction] | Mapping[str, Ended], horizon_us: int
) -> list[str]:
    """The names of old entries. They are in the order of time, so only those are examined."""
    names: list[str] = []
    for name, entry in known.items():
        if entry.at_us > horizon_us:
            break
        names.append(name)
    return names
