"""The registry of a virtual host: exchanges and bindings, the priorities in use, and queues that
end with their clients.

The registry is a channel that keeps the newest event of each entry. An entry that no longer holds
is replaced by an event that expires.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Channel, Session

_REMOVED_TTL = "1h"
"""Time to live of the event that removes an entry; it has replaced the entry's older events."""

Binding = tuple[str, str | None, str]
"""Routing key, its pattern for a topic exchange, and the queue."""


class SharedBindings:
    """A client's view of the registry. Each method first reads what other clients have changed."""

    def __init__(self, session: Session, name: str) -> None:
        self._channel: Channel = session.channels.create(name, if_missing=True, keys={"entry": 1})
        self._last_event_id = -1
        self._entries: dict[str, datetime] = {}
        """The entries as JSON, each with the time of its event."""

    def add_exchange(self, exchange: str, kind: str) -> None:
        """Add an exchange with its type, such as ``topic``."""
        self._add("exchange", exchange, kind)

    def exchange_type(self, exchange: str) -> str | None:
        """Return the type of an exchange; None if no client has declared it."""
        return next((kind for name, kind in self._read("exchange") if name == exchange), None)

    def bindings(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        entries = self._read("binding")
        return [(key, pattern, queue) for name, key, pattern, queue in entries if name == exchange]

    def bind(self, exchange: str, binding: Binding) -> None:
        """Add a binding."""
        self._add("binding", exchange, *binding)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        self._remove([json.dumps(["binding", exchange, *binding])])

    def delete_exchange(self, exchange: str) -> None:
        """Remove an exchange with its bindings."""
        entries = [
            json.dumps(["binding", exchange, *binding]) for binding in self.bindings(exchange)
        ]
        kind = self.exchange_type(exchange)
        if kind is not None:
            entries.append(json.dumps(["exchange", exchange, kind]))
        self._remove(entries)

    def priorities(self, queue: str) -> list[int]:
        """Return the priorities above 0 that messages of a queue have had, the highest first."""
        used = [priority for name, priority in self._read("priority") if name == queue]
        return sorted(used, reverse=True)

    def add_priority(self, queue: str, priority: int) -> None:
        """Add a priority to those of a queue."""
        self._add("priority", queue, priority)

    def add_ending(self, queue: str, idle_s: float) -> None:
        """Add a queue that ends with its clients, and the number of seconds for which it may have
        no consumer."""
        self._add("ending", queue, idle_s)

    def overdue(self) -> list[str]:
        """Return the queues that end with their clients and may be overdue: their declaration is
        older than their longest time without a consumer."""
        now = datetime.now(UTC)
        return [
            queue
            for queue, idle_s in self._read("ending")
            if now - self._entries[json.dumps(["ending", queue, idle_s])]
            > timedelta(seconds=idle_s)
        ]

    def forget(self, queue: str) -> None:
        """Remove all entries of a queue."""
        self._refresh()
        entries = []
        for entry in self._entries:
            kind, *values = json.loads(entry)
            if kind != "exchange" and (values[-1] if kind == "binding" else values[0]) == queue:
                entries.append(entry)
        self._remove(entries)

    def _read(self, kind: str) -> list[list[Any]]:
        """Return the values of all entries of a kind, such as ``binding``."""
        self._refresh()
        entries = map(json.loads, self._entries)
        return [values for entry_kind, *values in entries if entry_kind == kind]

    def _add(self, *values: Any) -> None:
        """Add an entry, its kind first, unless it exists."""
        self._refresh()
        entry = json.dumps(values)
        if entry not in self._entries:
            self._channel.publish(properties={"entry": entry})

    def _remove(self, entries: Iterable[str]) -> None:
        """Remove the entries that exist. They are read once, because each removal changes them."""
        self._refresh()
        for entry in entries:
            if entry in self._entries:
                self._channel.publish(properties={"entry": entry}, tag="removed", ttl=_REMOVED_TTL)

    def _refresh(self) -> None:
        """Read the entries again if the channel has new events."""
        last_event_id = self._channel.info().last_event_id
        if last_event_id == self._last_event_id:
            return
        # The channel stores one event for each entry, so reading all events is cheap.
        events = list(self._channel.browse()) if last_event_id >= 0 else []
        self._entries = {
            event.properties["entry"]: event.published
            for event in events
            if event.tag != "removed" and event.published is not None
        }
        self._last_event_id = last_event_id
