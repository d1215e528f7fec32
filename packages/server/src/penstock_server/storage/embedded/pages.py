"""The embedded pages: bodies of paged channels in preallocated files, mapped when read (SEM C1g).

``page_files`` handles the files; this module decides which body goes where.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_core.vocabulary.ports import Buffer, Clock, DamagedBody, Offload, PagesInfo, PageSlot
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded.changes import Changes
from penstock_server.storage.embedded.page_files import PageFile, PageFiles, padded


class PageLimits(Struct, frozen=True, kw_only=True):
    """Sizes of pages, and limits for work on the event loop."""

    page_bytes_min: int = 1 << 20
    """Bytes of a channel's first page. Each new page is as large as all earlier ones together."""
    page_bytes_max: int = 16 << 20
    """Size in bytes of the largest page, except for a single body that is larger."""
    inline_bytes_max: int = 128 << 10
    """Size in bytes above which a thread makes a write."""
    inline_sync_us_max: int = 1_000
    """Average duration of a sync in microseconds above which a thread makes the syncs."""


class _Body(NamedTuple):
    page: PageFile
    place: PageSlot
    content: Buffer


class _ChannelPages:
    """The pages of one channel, in order. ``at`` is the index of the page for the next body."""

    __slots__ = ("at", "number", "numbered", "pages")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pages: list[PageFile] = []
        self.at = 0
        self.numbered = 0
        """The highest page number used so far."""

    @property
    def size(self) -> int:
        return sum(page.size for page in self.pages)

    def page(self, number: int) -> PageFile | None:
        index = bisect_left(self.pages, number, key=lambda page: page.number)
        exists = index < len(self.pages) and self.pages[index].number == number
        return self.pages[index] if exists else None

    def remove(self, page: PageFile) -> None:
        """Remove a page without live bodies, which is before the page for the next body."""
        index = self.pages.index(page)
        assert index < self.at, "a page with free space is never removed"
        del self.pages[index]
        self.at -= 1


class FilePages:
    """The :class:`~penstock_core.vocabulary.ports.Pages` in ``<root>/pages``.

    After a failed sync, or if a flush was cancelled while writing, the content on disk is unknown.
    All calls except reads are then refused until the pages are opened again.
    """

    def __init__(
        self,
        root: str,
        *,
        disk: Disk,
        offload: Offload,
        clock: Clock,
        limits: PageLimits | None = None,
    ) -> None:
        """Find the page files of the data directory ``root``. Reads no page."""
        self._files = PageFiles(root, disk)
        self._clock = clock
        self._limits = limits or PageLimits()
        self._changes = Changes("the pages accept no more bodies after a failure", offload)
        self._restored = False
        self._sync_us = 0.0
        """Moving average of the duration of a sync, in microseconds."""
        self._pending: list[_Body] = []
        self._unsynced: dict[PageFile, None] = {}
        self._channels: dict[int, _ChannelPages] = {}
        for number, pages, highest in self._files.channels():
            channel = self._channels[number] = _ChannelPages(number)
            channel.pages, channel.at, channel.numbered = pages, len(pages), highest
            # After a crash these bodies may be in the system's cache only. They are synced before
            # the journal, which refers to them.
            self._files.sync_all(pages)

    # Writing

    async def reserve(self, channel: int, sizes: Sequence[int]) -> None:
        """Make sure that bodies of these sizes will find room on disk
        (:meth:`penstock_core.vocabulary.ports.Pages.reserve`)."""
        self._changes.check()
        assert self._restored, "`restore` marks the used slots before bodies are added"
        channel_pages = self._channels.setdefault(channel, _ChannelPages(channel))
        new_sizes = dict(enumerate(self._missing(channel_pages, sizes), channel_pages.numbered + 1))
        if not new_sizes:
            return
        # Counted even if the creation fails, so that no number is used twice.
        channel_pages.numbered += len(new_sizes)
        created: list[PageFile] = []
        await self._changes.make(
            lambda: created.extend(self._files.make(channel, new_sizes)), inline=False
        )
        channel_pages.pages.extend(created)

    def allocate(self, channel: int, body: Buffer) -> PageSlot:
        """Choose the slot of the next body in reserved room, in memory only
        (:meth:`penstock_core.vocabulary.ports.Pages.allocate`)."""
        self._changes.check_idle()
        size = memoryview(body).nbytes
        channel_pages = self._channels.get(channel)
        while (
            channel_pages
            and channel_pages.at < len(channel_pages.pages)
            and not channel_pages.pages[channel_pages.at].fits(size)
        ):
            channel_pages.at += 1
        assert channel_pages, f"no room was reserved for a body of {size} bytes"
        assert channel_pages.at < len(channel_pages.pages), (
            f"no room was reserved for a body of {size} bytes"
        )
        page = channel_pages.pages[channel_pages.at]
        place = PageSlot(page.number, page.end, size, checksum=xxh3_64_intdigest(body))
        page.take(place)
        self._pending.append(_Body(page, place, body))
        return place

    async def flush(self, *, sync: bool = True) -> None:
        """Write every allocated body (:meth:`penstock_core.vocabulary.ports.Pages.flush`)."""
        self._changes.check()
        pending, self._pending = self._pending, []
        if not pending and not (sync and self._unsynced):
            return
        self._unsynced.update(dict.fromkeys(body.page for body in pending))

        def write() -> None:
            self._write(pending)
            if sync:
                self._sync()

        size = sum(body.place.size for body in pending)
        quick = not sync or self._sync_us < self._limits.inline_sync_us_max
        try:
            await self._changes.make(write, inline=quick and size < self._limits.inline_bytes_max)
        except StorageFailed:
            for body in pending:
                body.page.give_back(body.place)
            raise

    # Reading

    def view(self, channel: int, place: PageSlot) -> memoryview:
        """Return the bytes of a body without a copy
        (:meth:`penstock_core.vocabulary.ports.Pages.view`)."""
        page = self._page(channel, place)
        if page is None:
            raise Damaged(f"{self._files.path(channel, place.page)} does not exist")
        return self._files.view(page, place)

    async def check(self, channel: int, places: Sequence[PageSlot]) -> list[DamagedBody]:
        """Return the bodies whose bytes differ from the bytes written
        (:meth:`penstock_core.vocabulary.ports.Pages.check`). A copy goes to ``quarantine``."""
        damaged: list[DamagedBody] = []

        def check_pages() -> None:
            ordered = sorted(places, key=lambda place: (place.page, place.offset))
            for number, within in groupby(ordered, key=lambda place: place.page):
                channel_pages = self._channels.get(channel)
                page = channel_pages.page(number) if channel_pages else None
                damaged.extend(self._files.damaged(channel, number, page, places=list(within)))

        await self._changes.make(check_pages, inline=False)
        return damaged

    def info(self, channel: int) -> PagesInfo:
        """Return the number and sizes of a channel's pages."""
        channel_pages = self._channels.get(channel) or _ChannelPages(channel)
        return PagesInfo(
            len(channel_pages.pages),
            channel_pages.size,
            sum(page.used for page in channel_pages.pages),
        )

    # Removing

    async def restore(
        self, in_use: Mapping[int, Sequence[PageSlot]], *, keep_rest: bool = False
    ) -> None:
        """Keep the slots of ``in_use`` and let others be reused, after opening
        (:meth:`penstock_core.vocabulary.ports.Pages.restore`).

        With ``keep_rest``, page files without used slots are renamed to ``<number>.kept``, which no
        start removes.
        """
        self._changes.check()
        assert not self._restored, "`restore` is called once"
        for number, places in in_use.items():
            for place in places:
                page = self._page(number, place)
                if page is not None:
                    page.take(place)

        def settle() -> None:
            for channel_pages in list(self._channels.values()):
                self._settle(channel_pages, keep_rest=keep_rest)

        await self._changes.make(settle, inline=False)
        self._restored = True

    async def release(self, channel: int, places: Sequence[PageSlot]) -> None:
        """Release the slots of removed events
        (:meth:`penstock_core.vocabulary.ports.Pages.release`)."""
        self._changes.check()
        channel_pages = self._channels.get(channel)
        if channel_pages is None:
            return
        for place in places:
            page = channel_pages.page(place.page)
            if page is not None:
                page.give_back(place)
        self._forget_pending()
        free = [page for page in channel_pages.pages[: channel_pages.at] if not page.bodies]
        if not free:
            return
        removed: list[PageFile] = []

        def remove() -> None:
            for page in free:
                self._files.remove(page)
                removed.append(page)

        # After a failure midway, the pages whose files were deleted must not be used again, either.
        try:
            await self._changes.make(remove, inline=False)
        finally:
            for page in removed:
                self._files.unmap(page)
                channel_pages.remove(page)

    async def drop(self, channel: int) -> None:
        """Remove all pages of a deleted channel
        (:meth:`penstock_core.vocabulary.ports.Pages.drop`).

        Files kept because of damage are not removed.
        """
        self._changes.check()
        channel_pages = self._channels.pop(channel, None)
        if channel_pages is None:
            return
        for page in channel_pages.pages:
            page.bodies.clear()
            self._files.unmap(page)
        self._forget_pending()
        await self._changes.make(
            lambda: self._files.remove_all(channel, channel_pages.pages), inline=False
        )

    async def close(self) -> None:
        """Sync flushed bodies and close (:meth:`penstock_core.vocabulary.ports.Pages.close`). Views
        stay valid."""
        with self._changes.alone:
            try:
                if not self._changes.failed:
                    self._sync()
            finally:
                self._files.close(self._unsynced)
                self._unsynced.clear()
                self._changes.failed = self._changes.failed or "they are closed"

    # Internal

    def _page(self, channel: int, place: PageSlot) -> PageFile | None:
        """Return the page file of a place; None if the channel has no pages."""
        channel_pages = self._channels.get(channel)
        return channel_pages.page(place.page) if channel_pages else None

    def _missing(self, channel_pages: _ChannelPages, sizes: Sequence[int]) -> list[int]:
        """Return the sizes of the new pages that bodies of these ``sizes`` need."""
        rooms = [page.size - page.end for page in channel_pages.pages[channel_pages.at :]]
        limits, total = self._limits, channel_pages.size
        missing: list[int] = []
        index = 0
        # Chooses the page of each body as `allocate` does.
        for size in map(padded, sizes):
            while index < len(rooms) and rooms[index] < size:
                index += 1
            if index == len(rooms):
                grown = min(max(total, limits.page_bytes_min), limits.page_bytes_max)
                missing.append(padded(max(grown, size)))
                rooms.append(missing[-1])
                total += missing[-1]
            rooms[index] -= size
        return missing

    def _forget_pending(self) -> None:
        """Drop bodies from the write queue that were released before they were written."""
        self._pending = [body for body in self._pending if body.page.has(body.place)]

    def _settle(self, channel_pages: _ChannelPages, *, keep_rest: bool) -> None:
        """Remove pages not in use, and continue after the last body of the newest page.

        With ``keep_rest`` files of removed pages are renamed instead of deleted, and new bodies go
        to new pages.
        """
        for page in [page for page in channel_pages.pages if not page.bodies]:
            self._files.remove(page, keep=keep_rest)
            channel_pages.remove(page)
        if not channel_pages.pages:
            self._files.remove_all(channel_pages.number, [])
        elif keep_rest:
            # `at` stays after these pages, so that no body is written to them: lost facts may refer
            # to bodies in their free space.
            for page in channel_pages.pages:
                page.keep = True
        else:
            channel_pages.at = len(channel_pages.pages) - 1

    def _write(self, bodies: Sequence[_Body]) -> None:
        """Write bodies to their pages. Neighbouring bodies are written together."""
        by_page: dict[PageFile, list[_Body]] = {}
        for body in bodies:
            by_page.setdefault(body.page, []).append(body)
        for page, group in by_page.items():
            chunks: list[Buffer] = []
            start = end = group[0].place.offset
            for _, place, content in group:
                if place.offset != end:  # a body in between was released
                    self._files.write(page, chunks, start)
                    chunks, start = [], place.offset
                chunks.extend((content, bytes(padded(place.size) - place.size)))
                end = place.offset + padded(place.size)
            self._files.write(page, chunks, start)

    def _sync(self) -> None:
        """Sync and close the files with unsynced bytes. Raises ``StorageFailed``."""
        started = self._clock.now_us()
        try:
            for page in self._unsynced:
                self._files.sync(page)
        except StorageFailed as error:
            # The sync is not retried: the system may have dropped the unwritten bytes, so that a
            # second sync would succeed and write nothing.
            self._changes.failed = str(error)
            raise
        # A moving average, so that a single slow sync does not move later ones to a thread.
        self._sync_us += (self._clock.now_us() - started - self._sync_us) / 8
        self._files.close(self._unsynced)
        self._unsynced.clear()
