"""Users and groups of a cluster, and rights on more than one of its stores, read from its register.
They also apply to the local stores of its nodes (SEM N8)."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_core.vocabulary.ports import Registry
from penstock_server.runtime.access.account_records import (
    ENTRIES_PREFIX,
    USERS_KEY,
    EntriesRecord,
    is_of_many,
)

ACCESS_PREFIX: Final = "access/"


class SharedAccounts:
    """The accounts as last read from the register. They stay in effect while the register does not
    answer."""

    def __init__(self, registry: Registry) -> None:
        self.users: bytes | None = None
        """The encoded record of users and groups; None if it does not exist yet."""
        self.entries: dict[str, EntriesRecord] = {}
        self._registry = registry
        self._versions: dict[str, int] = {}
        self._of_one: set[str] = set()
        """Keys of records with rights on a single store. Such rights are not shared, so these
        records are read only once."""

    async def refresh(self) -> bool:
        """Read the register again; return whether the accounts have changed. Raises
        ``Damaged``."""
        has_changed = await self._refresh_key(USERS_KEY)
        for key in await self._registry.list(ENTRIES_PREFIX):
            if key not in self._of_one:
                has_changed |= await self._refresh_key(key)
        return has_changed

    async def _refresh_key(self, key: str) -> bool:
        """Read a record of the register again; return whether the shared accounts have changed."""
        record = await self._registry.get(key)
        if record is None or record.version == self._versions.get(key):
            return False
        if key == USERS_KEY:
            self.users = record.value
        else:
            grants = msgspec.msgpack.decode(record.value, type=EntriesRecord)
            if not is_of_many(grants.kind, grants.name):
                self._of_one.add(key)
                return False
            self.entries[key] = grants
        self._versions[key] = record.version
        return True
