"""Actions of the single writer that read stored events, and so need files to be open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.runtime.store.open_files import OpenFiles
from penstock_server.runtime.store.sealed_file import FilesNotOpen, SealedFile
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard


async def with_open_files(
    shard: Shard,
    files: OpenFiles,
    number: int,
    action: Callable[[Group], Any],
    *,
    room: int = 0,
) -> Any:
    """Run ``action`` at its place in the order. It runs again, with more files of channel
    ``number`` open, each time it needs some that are not; so it reads before it changes anything.

    Raises ``NameDoesNotExist`` if the channel was deleted, ``StorageFailed`` if the disk has no
    ``room`` bytes for what it writes, and what the action raises.
    """
    needed: dict[SealedFile, None] = {}
    while True:
        try:
            return await shard.act(action, room=room)
        except FilesNotOpen as closed:
            needed |= dict.fromkeys(closed.files)
        if (store := shard.state.stores.get(number)) is None:
            raise NameDoesNotExist(f"channel number {number} no longer exists")
        # all that it has needed so far, so that the limit on open files closes none of them again
        await files.open([file for file in store.files if file in needed])
