"""Exports, imports and backups that a session works at with one request after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from penstock_core.vocabulary.errors import IllegalState, Unavailable
from penstock_core.vocabulary.ports import Clock

IDLE_US: Final = 300 * 1_000_000
"""A transfer without a request for so long is forgotten."""


class Transfer:
    """One transfer. It belongs to the session that has begun it."""

    def __init__(self, session: str, now_us: int) -> None:
        self.session = session
        self.used_us = now_us
        """When the last request for it was done."""
        self.users = 0
        """Requests at work with it."""


Each = TypeVar("Each", bound=Transfer)


class TransferRegistry(Generic[Each]):
    """All transfers of one kind, by name."""

    def __init__(self, kind: str, most: int, clock: Clock, *, ends: str) -> None:
        """``ends`` explains in errors how a transfer that its session still uses may have ended."""
        self._kind = kind
        self._most = most
        self._clock = clock
        self._ends = ends
        self._by_name: dict[str, Each] = {}
        self.next = 1
        """The number in the next one's name."""

    def __len__(self) -> int:
        return len(self._by_name)

    def check_room(self) -> None:
        """Raises ``Unavailable``."""
        if len(self) >= self._most:
            raise Unavailable(
                f"{self._most} {self._kind}s are running; try again when one has ended"
            )

    def add(self, one: Each) -> str:
        """Gives its name."""
        name = f"{self._kind}-{self.next}"
        self.next += 1
        self._by_name[name] = one
        return name

    def known(self, session: str, name: str) -> Each:
        """Raises ``IllegalState`` for one that has ended, and for another session's."""
        one = self._by_name.get(name)
        if one is None or one.session != session:
            raise IllegalState(
                f"{name} is not running: it {self._ends} for {IDLE_US // 1_000_000} s; start again"
            )
        return one

    @contextmanager
    def at_work(self, one: Each) -> Iterator[None]:
        """Keep a transfer from expiring while a request works with it."""
        one.users += 1
        try:
            yield
        finally:
            self.rest(one)

    def rest(self, one: Each) -> None:
        """A request is done with it."""
        one.users -= 1
        one.used_us = self._clock.now_us()

    def of(self, session: str) -> list[tuple[str, Each]]:
        """The transfers that end with a session's connection."""
        return [(name, one) for name, one in self._by_name.items() if one.session == session]

    def idle(self) -> list[tuple[str, Each]]:
        """The transfers without a request for a long time."""
        horizon = self._clock.now_us() - IDLE_US
        return [
            (name, one)
            for name, one in self._by_name.items()
            if one.used_us < horizon and not one.users
        ]

    def remove(self, name: str) -> Each | None:
        """Remove a transfer; gives None if it is gone already."""
        return self._by_name.pop(name, None)
