"""Runs actions of the single writer that read stored events and so need open files."""

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
    channel_id: int,
    action: Callable[[Group], Any],
    *,
    room: int = 0,
) -> Any:
    """Run ``action`` in the order of the writer's requests, with the files open that it reads.

    The writer's turn cannot wait for a file. If the action needs closed files of its channel, they
    are opened and the action runs again. The action must therefore read before it changes anything.

    Raises ``NameDoesNotExist`` if the channel was deleted, ``StorageFailed`` if the disk has no
    room for ``room`` bytes, which the action may write, and what the action raises.
    """
    needed: dict[SealedFile, None] = {}
    while True:
        try:
            return await shard.act(action, room=room)
        except FilesNotOpen as closed:
            needed |= dict.fromkeys(closed.files)
        if (store := shard.state.stores.get(channel_id)) is None:
            raise NameDoesNotExist(f"channel number {channel_id} no longer exists")
        # Open all files needed so far together: one by one, the limit on open files could close
        # earlier ones again, and the loop would never end.
        await files.open([file for file in store.files if file in needed])
