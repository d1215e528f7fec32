"""Functions that open and fill the embedded pages of a realm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock_core.vocabulary.ports import PageSlot
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded import FilePages
from penstock_testing.stores import open_store

ONE = "/realm/pages/1"


async def opened(
    disk: Disk,
    in_use: Mapping[int, Sequence[PageSlot]] | None = None,
    *,
    root: str = "/realm",
    keep_rest: bool = False,
) -> FilePages:
    """Open and recover the pages of a realm. A test that calls this again has killed the former
    ones."""
    pages = open_store(root, disk).pages
    await pages.restore(in_use or {}, keep_rest=keep_rest)
    return pages


async def put(
    pages: FilePages, bodies: Sequence[bytes], *, channel: int = 1, sync: bool = True
) -> list[PageSlot]:
    await pages.reserve(channel, [len(body) for body in bodies])
    places = [pages.allocate(channel, body) for body in bodies]
    await pages.flush(sync=sync)
    return places


def files(disk: Disk, directory: str = ONE) -> dict[str, int]:
    return {entry.name: entry.size for entry in disk.list(directory)}
