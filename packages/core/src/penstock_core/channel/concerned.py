"""Whom a change on a channel concerns, found without looking at everybody who is there.

The selectors that are asked of every event, and on whose behalf, are kept as durables, readers and
subscribers come and go; so are the durables that may have something for their clients. A publish
costs by those it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Final

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber


class SelectorHolders:
    """Durables and subscribers that have the same selector, in the order in which they came."""

    __slots__ = ("durables", "seats", "subscribers")

    def __init__(self) -> None:
        self.durables: dict[str, Durable] = {}
        """By name."""
        self.seats: dict[int, Seat] = {}
        """By subscription, and so are those below."""
        self.subscribers: dict[int, Subscriber] = {}

    @property
    def in_use(self) -> bool:
        return bool(self.durables or self.seats or self.subscribers)


NO_HOLDERS: Final = SelectorHolders()


class SelectorsInUse:
    """Durables and subscribers by their selector. None without a selector is here."""

    __slots__ = ("_changed", "_holders")

    def __init__(self) -> None:
        self._holders: dict[str, SelectorHolders] = {}
        self._changed: dict[str, bool] = {}
        """Selectors that came, and, false, that went, since somebody took :meth:`changes`."""

    @property
    def texts(self) -> KeysView[str]:
        """What is asked, each once."""
        return self._holders.keys()

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def changes(self) -> Iterator[tuple[str, bool]]:
        """The selectors that came, true, and went, false, since this was last taken."""
        changed, self._changed = self._changed, {}
        yield from changed.items()

    def holders(self, selector: str) -> SelectorHolders:
        """Durables and subscribers that have this selector."""
        return self._holders.get(selector, NO_HOLDERS)

    def durables(self, matched: Mapping[str, object]) -> Iterator[tuple[str, Durable]]:
        """The durables whose selectors are among these, each with its selector."""
        for selector in matched:
            for durable in self.holders(selector).durables.values():
                yield selector, durable

    def add(self, asker: Durable | Seat | Subscriber) -> None:
        if not asker.selector:
            return
        there = self._holders.get(asker.selector)
        if there is None:
            there = self._holders[asker.selector] = SelectorHolders()
            self._note(asker.selector, is_there=True)
        match asker:
            case Durable():
                there.durables[asker.name] = asker
            case Seat():
                there.seats[asker.subscription] = asker
            case Subscriber():
                there.subscribers[asker.subscription] = asker

    def remove(self, asker: Durable | Seat | Subscriber) -> None:
        there = self._holders.get(asker.selector)
        if there is None:
            return
        match asker:
            case Durable():
                there.durables.pop(asker.name, None)
            case Seat():
                there.seats.pop(asker.subscription, None)
            case Subscriber():
                there.subscribers.pop(asker.subscription, None)
        if not there.in_use:
            del self._holders[asker.selector]
            self._note(asker.selector, is_there=False)

    def _note(self, selector: str, *, is_there: bool) -> None:
        if selector in self._changed:  # it is again as it was
            del self._changed[selector]
        else:
            self._changed[selector] = is_there


class TouchedDurables:
    """The durables that may have something for their clients; soft state."""

    __slots__ = ("_by_name", "_is_all", "_seated", "_unselective")

    def __init__(self) -> None:
        self._is_all = False
        self._by_name: dict[str, Durable] = {}
        self._seated: dict[str, Durable] = {}
        self._unselective: dict[str, Durable] = {}
        """Durables of ``_seated`` that everything published is for."""

    def seat_added(self, durable: Durable) -> None:
        """A client has taken a seat at a durable."""
        self._seated[durable.name] = durable
        if not durable.selector:
            self._unselective[durable.name] = durable
        self.add(durable)

    def seat_removed(self, durable: Durable) -> None:
        """A client has left a durable; others may get what it held."""
        self.add(durable)
        if not durable.seats:
            self.forget(durable.name)

    def forget(self, name: str) -> None:
        """A durable has no clients any more, or is gone."""
        for known in (self._by_name, self._seated, self._unselective):
            known.pop(name, None)

    def add(self, durable: Durable) -> None:
        """Something changed for this durable."""
        self._by_name[durable.name] = durable

    def add_all(self) -> None:
        """Something changed that may concern any durable."""
        self._is_all = True

    def get(self) -> list[Durable]:
        """Durables with clients for which there may be something, once each."""
        found = self._seated if self._is_all else {**self._unselective, **self._by_name}
        return [durable for durable in found.values() if durable.seats]

    def clear(self) -> None:
        """They are offered everything that there is now."""
        self._is_all, self._by_name = False, {}
