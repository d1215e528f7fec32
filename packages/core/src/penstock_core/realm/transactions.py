"""Open transactions, and the outcomes of ended ones (SEM X1, X2).

An open transaction is soft state: it records the stores that were below their capacity when it
began, and a restart forgets it. The outcome of a transaction is a fact, which is remembered for a
day.
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
"""Time for which the outcome of a transaction can be queried, in microseconds."""
OPEN_MAX_US = REMEMBERED_US
"""Microseconds after which an open transaction that its client does not end is forgotten."""

OPEN_OF_ONE_MAX = 10_000
"""Maximum number of open transactions of one user. In a realm without authentication all clients
are one user."""
OPEN_STORES_OF_ONE_MAX: Final = 100_000
"""Maximum number of stores that all open transactions of one user have recorded as below their
capacity."""
ENDED_OF_ONE_MAX: Final = 1_000_000
"""Maximum number of remembered outcomes, and id ranges in them, of one user. Beyond this limit, the
oldest tenth is forgotten."""


class OpenTransaction(Struct, frozen=True):
    """A transaction that was begun and has not ended."""

    at_us: int
    """Time at which the transaction began, in microseconds since 1970."""
    below_capacity: frozenset[int]
    """Ids of the stores that were not full when the transaction began, so that it may exceed their
    capacities (SEM T4)."""


class TransactionTable:
    """The open and recently ended transactions of a realm, by name with owner."""

    def __init__(self, ended_of_one_max: int = ENDED_OF_ONE_MAX) -> None:
        self._ended_of_one_max = ended_of_one_max
        self.open: dict[str, OpenTransaction] = {}
        """The open transactions by name."""
        self._ended: dict[str, Ended] = {}
        self._open_stores = 0
        """Number of stores recorded by all open transactions."""
        self._ended_sizes: Counter[str] = Counter()
        """Number of remembered outcomes and id ranges, by user."""

    # --- reading --------------------------------------------------------------------------

    def begun(self, transaction: str) -> OpenTransaction:
        """Return an open transaction. Raises ``AlreadyCommitted``, ``AlreadyAborted``,
        ``NoSuchTransaction``."""
        ended = self._outcome(transaction)
        if ended is not None:
            if ended.committed:
                raise AlreadyCommitted(f"transaction {plain(transaction)} is already committed")
            raise AlreadyAborted(f"transaction {plain(transaction)} is already aborted")
        begun = self.open.get(transaction)
        if begun is None:
            raise NoSuchTransaction(
                f"there is no transaction {plain(transaction)}: it was never begun, ended more "
                "than a day ago, or was open when the realm restarted or another node took over; "
                "begin it again"
            )
        return begun

    def ended(self, transaction: str) -> Ended | None:
        """Return the outcome of a transaction; None if it is open. Raises ``NoSuchTransaction``."""
        if (ended := self._outcome(transaction)) is not None:
            return ended
        self.begun(transaction)
        return None

    def _outcome(self, transaction: str) -> Ended | None:
        """Return the outcome of a transaction, or None if it is unknown. Outcomes stored before the
        realm had users are found under the name without an owner."""
        return self._ended.get(transaction) or self._ended.get(plain(transaction))

    # --- changes -------------------------------------------------------------------------

    def begin(self, transaction: str, at_us: int, below_capacity: Collection[int]) -> None:
        """Begin a transaction, or add stores to an open transaction. A repetition is not an error,
        because the answer may have been lost. A client names further stores when its transaction
        reaches them. Raises ``AlreadyCommitted``, ``AlreadyAborted`` and ``LimitReached``."""
        self._forget(at_us)
        if self._outcome(transaction) is not None:
            self.begun(transaction)  # raises the error for this outcome
        newly_below = frozenset(below_capacity)
        open_transaction = self.open.get(transaction)
        if open_transaction is None:
            self._refuse_more(owner_of(transaction))
        already_below = frozenset[int]()
        if open_transaction is not None:
            at_us, already_below = open_transaction.at_us, open_transaction.below_capacity
        self._refuse_stores(owner_of(transaction), len(newly_below - already_below))
        self.open[transaction] = OpenTransaction(at_us, already_below | newly_below)
        self._open_stores += len(newly_below - already_below)

    def _refuse_more(self, owner: str) -> None:
        """Raise ``LimitReached`` if the user has too many open transactions."""
        # The total is compared first, because the count of one user visits all transactions.
        if len(self.open) < OPEN_OF_ONE_MAX:
            return
        open_count = sum(owner_of(name) == owner for name in self.open)
        if open_count >= OPEN_OF_ONE_MAX:
            raise LimitReached(
                f"{open_count} transactions are open; at most {OPEN_OF_ONE_MAX} are allowed: "
                "commit or abort some"
            )

    def _refuse_stores(self, owner: str, more: int) -> None:
        """Raise ``LimitReached`` if the user's open transactions would record too many stores."""
        if self._open_stores + more <= OPEN_STORES_OF_ONE_MAX:
            return
        named_count = sum(
            len(opened.below_capacity)
            for name, opened in self.open.items()
            if owner_of(name) == owner
        )
        if named_count + more > OPEN_STORES_OF_ONE_MAX:
            raise LimitReached(
                f"the open transactions would name {named_count + more} channels and queues; "
                f"allowed are {OPEN_STORES_OF_ONE_MAX}: commit or abort some"
            )

    def apply(self, ended: Ended) -> None:
        """Record the outcome of a transaction, and forget old outcomes."""
        self._close(ended.transaction)
        # Removed first, so that the new entry becomes the last one: `_before` relies on the order.
        self._forget_ended(ended.transaction)
        self._ended[ended.transaction] = ended
        owner = owner_of(ended.transaction)
        self._ended_sizes[owner] += _size_of(ended)
        self._forget(ended.at_us)
        if self._ended_sizes[owner] > self._ended_of_one_max:
            self._forget_oldest(owner)

    def lower(self, now_us: int) -> None:
        """Set end times later than ``now_us`` to ``now_us``, because the clock was ahead in an
        earlier run of the realm. Afterwards the entries are in the order of their times again."""
        for name, ended in self._ended.items():
            if ended.at_us > now_us:
                self._ended[name] = replace(ended, at_us=now_us)

    def _forget(self, now_us: int) -> None:
        """Forget outcomes that are too old, and transactions that have been open for too long."""
        for name in _before(self._ended, now_us - REMEMBERED_US):
            self._forget_ended(name)
        for name in _before(self.open, now_us - OPEN_MAX_US):
            self._close(name)

    def _close(self, transaction: str) -> None:
        """Remove a transaction from the open ones."""
        opened = self.open.pop(transaction, None)
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
            if self._ended_sizes[owner] <= self._ended_of_one_max * 9 // 10:
                return
            self._forget_ended(name)

    def state(self) -> tuple[Ended, ...]:
        """Return the remembered outcomes, for a snapshot."""
        return tuple(self._ended.values())


def _size_of(ended: Ended) -> int:
    """Return what an outcome adds to ``_ended_sizes``: itself and its id ranges."""
    return 1 + len(ended.spans)


def _before(
    entries: Mapping[str, OpenTransaction] | Mapping[str, Ended], horizon_us: int
) -> list[str]:
    """Return the names of the entries whose time is at most ``horizon_us``."""
    # The entries are in the order of their times, so the loop ends at the first newer entry.
    names: list[str] = []
    for name, entry in entries.items():
        if entry.at_us > horizon_us:
            break
        names.append(name)
    return names
