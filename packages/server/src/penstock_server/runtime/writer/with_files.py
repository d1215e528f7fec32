"""Actions of the single writer that read stored events: all files are open when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.runtime.store.open_files import OpenFiles
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

_NOT_OPEN: Final = object()


async def with_open_files(
    shard: Shard,
    files: OpenFiles,
    number: int,
    action: Callable[[Group], Any],
    *,
    room: int = 0,
) -> Any:
    """Run ``action`` at its place in the order, with all files of channel ``number`` open.

    Raises ``NameDoesNotExist`` if the channel was deleted, ``StorageFailed`` if the disk has no
    ``room`` bytes for what it writes, and what the action raises.
    """
    while True:
        store = shard.state.stores.get(number)
        if store is None:
            raise NameDoesNotExist(f"channel number {number} no longer exists")
        await files.open(store.files)
        found = await shard.act(lambda group: _if_open(group, number, action), room=room)
        if found is not _NOT_OPEN:  # otherwise events were sealed, or files closed, meanwhile
            return found


def _if_open(group: Group, number: int, action: Callable[[Group], Any]) -> Any:
    store = group.state.stores.get(number)
    return _NOT_OPEN if store is not None and not store.is_open() else action(group)
