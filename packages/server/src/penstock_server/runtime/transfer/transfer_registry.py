"""Exports, imports and backups: transfers that a session works on in several requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from penstock_core.vocabulary.errors import IllegalState, Unavailable
from penstock_core.vocabulary.ports import Clock

IDLE_US: Final = 300 * 1_000_000
"""Microseconds without a request after which a transfer ends."""


class Transfer:
    """An export, import or backup. It belongs to the session that began it."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.used_us = 0
        """Time in microseconds at which the last request ended."""
        self.users = 0
        """Number of requests that work on the transfer now."""


TransferType = TypeVar("TransferType", bound=Transfer)


class TransferRegistry(Generic[TransferType]):
    """All transfers of one kind, by name. They end with the connection of their session."""

    def __init__(self, kind: str, count_max: int, clock: Clock, *, ends: str) -> None:
        """Create an empty registry for ``count_max`` transfers. ``ends`` says in error
        texts how a transfer may have ended."""
        self._kind = kind
        self._count_max = count_max
        self._clock = clock
        self._ends = ends
        self._by_name: dict[str, TransferType] = {}
        self.next = 1
        """Number for the name of the next transfer."""

    def __len__(self) -> int:
        return len(self._by_name)

    def leave(self, session: str) -> None:
        """End the transfers of a session whose connection has ended."""
        for name, transfer in list(self._by_name.items()):
            if transfer.session == session:
                self._forget(name, transfer)

    def expire(self) -> None:
        """End the transfers that had no request for :data:`IDLE_US`."""
        horizon = self._clock.now_us() - IDLE_US
        # A copy, because an ended transfer leaves the dictionary.
        for name, transfer in list(self._by_name.items()):
            if transfer.used_us < horizon and not transfer.users:
                self._log_expired(transfer)
                self._forget(name, transfer)

    def check_room(self) -> None:
        """Raise ``Unavailable`` if the limit of transfers is reached."""
        if len(self) >= self._count_max:
            raise Unavailable(
                f"the limit of {self._kind}s at the same time, {self._count_max}, is reached; try "
                f"again when one has ended"
            )

    def add(self, transfer: TransferType) -> str:
        """Register a transfer that begins now; return its name."""
        name = f"{self._kind}-{self.next}"
        self.next += 1
        transfer.used_us = self._clock.now_us()
        self._by_name[name] = transfer
        return name

    def find(self, session: str, name: str) -> TransferType:
        """Return the transfer of this name. Raises ``IllegalState`` if it has ended or belongs to
        another session."""
        transfer = self._by_name.get(name)
        # One error for both cases, so that a session cannot find out the transfers of others.
        if transfer is None or transfer.session != session:
            raise IllegalState(
                f"{name} is not running: it {self._ends} for {IDLE_US // 1_000_000} s; start again"
            )
        return transfer

    @contextmanager
    def at_work(self, transfer: TransferType) -> Iterator[None]:
        """Keep a transfer from expiring while a request works on it."""
        transfer.users += 1
        try:
            yield
        finally:
            transfer.users -= 1
            transfer.used_us = self._clock.now_us()

    def remove(self, name: str) -> TransferType | None:
        """Remove a transfer and return it; None if it has already been removed."""
        return self._by_name.pop(name, None)

    def _forget(self, name: str, transfer: TransferType) -> None:
        """End a transfer. Subclasses also release its files here."""
        self.remove(name)

    def _log_expired(self, transfer: TransferType) -> None:
        """Log that a transfer ends because it was idle."""
