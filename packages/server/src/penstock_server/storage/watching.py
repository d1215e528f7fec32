"""Notifies watchers of a registry in this process about changes."""

from __future__ import annotations

import asyncio
from weakref import ReferenceType, ref

from penstock_core.vocabulary.ports import Change, VersionedRecord


class Watch:
    """An iterator over the changes of keys with a prefix, from the creation of this watch on. A
    slow watcher gets only the newest record of each key, so its queue has at most one entry for
    each key.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._waiting: dict[str, VersionedRecord | None] = {}
        self._changed = asyncio.Event()

    def note(self, key: str, record: VersionedRecord | None) -> None:
        if key.startswith(self._prefix):
            self._waiting[key] = record
            self._changed.set()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        key = next(iter(self._waiting))
        return key, self._waiting.pop(key)


class Watches:
    """The watches of a registry. A watch ends when the program no longer refers to it."""

    def __init__(self) -> None:
        self._open: list[ReferenceType[Watch]] = []

    def add(self, prefix: str) -> Watch:
        watch = Watch(prefix)
        self._open.append(ref(watch))
        return watch

    def note(self, key: str, record: VersionedRecord | None) -> None:
        """Pass a change to all watches, and drop watches that the program no longer refers to."""
        alive = [
            (reference, watch) for reference in self._open if (watch := reference()) is not None
        ]
        for _, watch in alive:
            watch.note(key, record)
        self._open = [reference for reference, _ in alive]
