"""Indexes of the durables, readers and subscribers that a change on a channel affects.

One index maps each selector in use to its holders. Another one collects the durables that may have
events to deliver. The cost of a publish therefore depends on the clients it is for, not on all
clients of the channel.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Final

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber


class SelectorHolders:
    """Durables, readers and subscribers with one selector, in the order of their addition."""

    __slots__ = ("durables", "seats", "subscribers")

    def __init__(self) -> None:
        self.durables: dict[str, Durable] = {}
        """Keyed by name."""
        self.seats: dict[int, Seat] = {}
        """Keyed by subscription."""
        self.subscribers: dict[int, Subscriber] = {}
        """Keyed by subscription."""

    @property
    def in_use(self) -> bool:
        return bool(self.durables or self.seats or self.subscribers)


NO_HOLDERS: Final = SelectorHolders()


class SelectorsInUse:
    """Durables, readers and subscribers by their selector; those without a selector are left
    out."""

    __slots__ = ("_changed", "_holders")

    def __init__(self) -> None:
        self._holders: dict[str, SelectorHolders] = {}
        self._changed: dict[str, bool] = {}
        """Selectors added (true) and removed (false) since the last call of :meth:`changes`."""

    @property
    def texts(self) -> KeysView[str]:
        """The distinct selector texts."""
        return self._holders.keys()

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def changes(self) -> Iterator[tuple[str, bool]]:
        """Yield the selectors added (true) and removed (false) since the last call."""
        changed, self._changed = self._changed, {}
        yield from changed.items()

    def holders(self, selector: str) -> SelectorHolders:
        """Return the durables, readers and subscribers that have this selector."""
        return self._holders.get(selector, NO_HOLDERS)

    def durables(self, matched: Mapping[str, object]) -> Iterator[tuple[str, Durable]]:
        """Yield the durables whose selectors are in ``matched``, each with its selector."""
        for selector in matched:
            for durable in self.holders(selector).durables.values():
                yield selector, durable

    def add(self, holder: Durable | Seat | Subscriber) -> None:
        """Add a holder of a selector; one without a selector is ignored."""
        if not holder.selector:
            return
        holders = self._holders.get(holder.selector)
        if holders is None:
            holders = self._holders[holder.selector] = SelectorHolders()
            self._note(holder.selector, is_added=True)
        match holder:
            case Durable():
                holders.durables[holder.name] = holder
            case Seat():
                holders.seats[holder.subscription] = holder
            case Subscriber():
                holders.subscribers[holder.subscription] = holder

    def remove(self, holder: Durable | Seat | Subscriber) -> None:
        """Remove a holder, and its selector with its last holder."""
        holders = self._holders.get(holder.selector)
        if holders is None:
            return
        match holder:
            case Durable():
                holders.durables.pop(holder.name, None)
            case Seat():
                holders.seats.pop(holder.subscription, None)
            case Subscriber():
                holders.subscribers.pop(holder.subscription, None)
        if not holders.in_use:
            del self._holders[holder.selector]
            self._note(holder.selector, is_added=False)

    def _note(self, selector: str, *, is_added: bool) -> None:
        """Record that the first holder of ``selector`` was added (``is_added``) or its last one
        removed."""
        if selector in self._changed:  # the two changes cancel each other
            del self._changed[selector]
        else:
            self._changed[selector] = is_added


class TouchedDurables:
    """The durables that may have events for their clients; soft state."""

    __slots__ = ("_by_name", "_is_all", "_seated", "_unselective")

    def __init__(self) -> None:
        self._is_all = False
        self._by_name: dict[str, Durable] = {}
        self._seated: dict[str, Durable] = {}
        self._unselective: dict[str, Durable] = {}
        """Durables of ``_seated`` without a selector: every published event is for them."""

    def seat_added(self, durable: Durable) -> None:
        """Record that a client has taken a seat at a durable."""
        self._seated[durable.name] = durable
        if not durable.selector:
            self._unselective[durable.name] = durable
        self.add(durable)

    def seat_removed(self, durable: Durable) -> None:
        """Record that a client has left a durable; the events that the client held may go to other
        clients."""
        self.add(durable)
        if not durable.seats:
            self.forget(durable.name)

    def forget(self, name: str) -> None:
        """Remove a durable that has no clients any more or was deleted."""
        for durables in (self._by_name, self._seated, self._unselective):
            durables.pop(name, None)

    def add(self, durable: Durable) -> None:
        """Record that this durable may have events to deliver."""
        self._by_name[durable.name] = durable

    def add_all(self) -> None:
        """Record a change that may affect any durable."""
        self._is_all = True

    def get(self) -> list[Durable]:
        """Return the distinct durables that have clients and may have events for them."""
        durables = self._seated if self._is_all else {**self._unselective, **self._by_name}
        return [durable for durable in durables.values() if durable.seats]

    def clear(self) -> None:
        """Forget the noted durables, after all of them have been offered their events."""
        self._is_all, self._by_name = False, {}
