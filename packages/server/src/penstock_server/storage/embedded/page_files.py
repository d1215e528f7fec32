"""The files under ``pages``: ``<channel number>/<page number>.page``. They contain only bodies of
events.

A file is created with its full size, which never changes. So a full disk is detected before a body
is accepted, and a mapping covers the whole file. Bodies start at multiples of 8.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_core.vocabulary.ports import Buffer, DamagedBody, PageSlot
from penstock_server.storage.disk import DirectoryEntry, Disk, make_directories
from penstock_server.storage.embedded.quarantine import QuarantineFolder

ALIGNMENT = 8
"""Alignment of bodies in bytes: Arrow reads them in place and needs aligned buffers."""
MAPPED_MAX = 256
"""Largest number of mapped pages, because each keeps a file open. The least recently read page is
unmapped first."""

_PAGE = ".page"
"""Ending of the name of a page file."""
_KEPT = ".kept"
"""Ending of the name of a page file that no start uses or removes."""


def padded(size: int) -> int:
    """Return the bytes that a body of ``size`` bytes occupies in a page: a multiple of the
    alignment, and at least one unit for an empty body."""
    return max(-(-size // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


class PageFile:
    """One page file and the bodies in it."""

    __slots__ = ("bodies", "end", "file", "keep", "number", "path", "size", "used")

    def __init__(self, path: str, number: int, size: int) -> None:
        self.path = path
        self.number = number
        self.size = size
        self.end = 0
        """Offset of the next body."""
        self.bodies: dict[int, PageSlot] = {}
        """Slots of the bodies in use, by offset."""
        self.used = 0
        """Bytes of the bodies in use."""
        self.file: int | None = None
        """The open file while it has bytes that are not synced; otherwise None."""
        self.keep = False
        """Whether the file may have bodies of lost facts, so that it must not be deleted (SEM
        S1)."""

    def fits(self, size: int) -> bool:
        return self.end + padded(size) <= self.size

    def has(self, place: PageSlot) -> bool:
        return self.bodies.get(place.offset) == place

    def take(self, place: PageSlot) -> None:
        if place.offset not in self.bodies:
            self.bodies[place.offset] = place
            self.used += place.size
        self.end = max(self.end, place.offset + padded(place.size))

    def give_back(self, place: PageSlot) -> None:
        if self.has(place):  # another body may use the offset of one that was released before
            del self.bodies[place.offset]
            self.used -= place.size


class PageFiles:
    """Creates, writes, reads and removes page files. All calls but ``view`` block on the disk."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._root = root
        self._directory = f"{root}/pages"
        self._disk = disk
        self._quarantine = QuarantineFolder(disk, root)
        self._mapped: OrderedDict[PageFile, memoryview] = OrderedDict()

    def path(self, channel: int, number: int) -> str:
        return f"{self._directory}/{channel}/{number:04}{_PAGE}"

    def channels(self) -> Iterator[tuple[int, list[PageFile], int]]:
        """Yield each channel with files: its id, its pages in order, and the highest page number.

        Files and directories with other names are ignored.
        """
        for directory in self._list(self._directory):
            if not (directory.is_directory and directory.name.isdecimal()):
                continue
            channel = int(directory.name)
            pages, highest = [], 0
            for entry in self._list(f"{self._directory}/{directory.name}"):
                stem, dot, ending = entry.name.rpartition(".")
                if not stem.isdecimal() or dot + ending not in (_PAGE, _KEPT):
                    continue
                highest = max(highest, int(stem))
                if entry.name.endswith(_PAGE):
                    path = f"{self._directory}/{directory.name}/{entry.name}"
                    pages.append(PageFile(path, int(stem), entry.size))
            yield channel, sorted(pages, key=lambda page: page.number), highest

    def make(self, channel: int, sizes: Mapping[int, int]) -> list[PageFile]:
        """Create pages with these sizes by page number, and sync their names. If one of them cannot
        be created, none is. Raises ``StorageFailed``."""
        created: list[PageFile] = []
        directory = f"{self._directory}/{channel}"
        try:
            make_directories(self._disk, directory, self._root)
            for number, size in sizes.items():
                page = PageFile(self.path(channel, number), number, size)
                file = self._disk.open(page.path, create=True)
                created.append(page)
                try:
                    self._disk.allocate(file, 0, size)
                    if self._disk.size(file) < size:  # a file system that cannot reserve space
                        self._disk.truncate(file, size)
                finally:
                    self._disk.close(file)
            self._disk.sync_directory(directory)
        except OSError as error:
            for page in created:
                with suppress(OSError):  # the next start removes empty pages
                    self._disk.unlink(page.path)
            total_bytes = sum(sizes.values())
            raise StorageFailed(f"{directory}: no room for {total_bytes} bytes: {error}") from error
        return created

    def write(self, page: PageFile, chunks: Sequence[Buffer], offset: int) -> None:
        try:
            if page.file is None:
                page.file = self._disk.open(page.path)
            self._disk.pwrite(page.file, chunks, offset)
        except OSError as error:
            raise StorageFailed(f"{page.path} could not be written: {error}") from error

    def sync(self, page: PageFile) -> None:
        if page.file is None:
            return  # the page was not written since the last sync, or was removed
        try:
            self._disk.datasync(page.file)
        except OSError as error:
            raise StorageFailed(f"{page.path} could not be synced: {error}") from error

    def sync_all(self, pages: Iterable[PageFile]) -> None:
        """Sync the bytes that an earlier process has written to these pages. A page that cannot be
        opened is skipped, because the check of the pages reports it as damaged.
        """
        for page in pages:
            with suppress(OSError):
                page.file = self._disk.open(page.path)
            self.sync(page)
            self.close([page])

    def close(self, pages: Iterable[PageFile]) -> None:
        for page in pages:
            if page.file is not None:
                self._disk.close(page.file)
                page.file = None

    def view(self, page: PageFile, place: PageSlot) -> memoryview:
        """Return the mapped bytes of a slot. Raises ``Damaged`` if the file is too short."""
        mapping = self._mapped.get(page)
        if mapping is None:
            mapping = self._mapped[page] = self._map(page)
            if len(self._mapped) > MAPPED_MAX:  # each mapping keeps a file descriptor
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(page)
        end = place.offset + place.size
        if end > len(mapping):
            raise Damaged(
                f"{page.path} ends at byte {len(mapping)}, before the end of a body at byte {end}"
            )
        return mapping[place.offset : end]

    def unmap(self, page: PageFile) -> None:
        """Drop the mapping. Views returned before keep it alive."""
        self._mapped.pop(page, None)

    def damaged(
        self, channel: int, number: int, page: PageFile | None, places: Sequence[PageSlot]
    ) -> list[DamagedBody]:
        """Check bodies of one page and copy those with a wrong checksum to quarantine.

        Reads the file instead of mapping it, because an unreadable mapped sector would kill the
        process.
        """
        path = page.path if page is not None else self.path(channel, number)
        try:
            file = self._disk.open(path)
        except OSError as error:
            reason = f"the page cannot be opened: {error}"
            return [_damaged(path, place, reason) for place in places]
        try:
            checked = [(place, self._fault(file, channel, place)) for place in places]
        finally:
            self._disk.close(file)
        return [_damaged(path, place, reason) for place, reason in checked if reason]

    def remove(self, page: PageFile, *, keep: bool = False) -> None:
        """Delete the file, or rename it to ``.kept`` if it may hold bodies of lost facts."""
        self.close([page])
        try:
            if keep or page.keep:
                kept_path = page.path.removesuffix(_PAGE) + _KEPT
                self._disk.rename(page.path, kept_path, replace=True)
            else:
                self._disk.unlink(page.path)
        except FileNotFoundError:
            return  # it was removed before
        except OSError as error:
            raise StorageFailed(f"{page.path} could not be removed: {error}") from error

    def remove_all(self, channel: int, pages: Sequence[PageFile]) -> None:
        """Remove pages and the channel's directory, unless other files are left in it."""
        for page in pages:
            self.remove(page)
        directory = f"{self._directory}/{channel}"
        try:
            if not self._disk.list(directory):
                self._disk.remove_directory(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageFailed(f"{directory} could not be removed: {error}") from error

    # Internal

    def _list(self, path: str) -> list[DirectoryEntry]:
        try:
            return self._disk.list(path)
        except FileNotFoundError:
            return []

    def _map(self, page: PageFile) -> memoryview:
        try:
            file = self._disk.open(page.path)
            try:
                return self._disk.map(file)
            finally:
                self._disk.close(file)
        except OSError as error:
            raise Damaged(f"{page.path} cannot be mapped: {error}") from error

    def _fault(self, file: int, channel: int, place: PageSlot) -> str:
        """Return a description of a body's damage; empty if it is intact."""
        try:
            content = self._disk.pread(file, place.size, place.offset)
        except OSError as error:
            return f"the disk cannot read it: {error}"
        if len(content) < place.size:
            reason = f"the page ends {place.size - len(content)} bytes before the body does"
        elif xxh3_64_intdigest(content) != place.checksum:
            reason = "the body fails its checksum"
        else:
            return ""
        name = f"pages-{channel}-{place.page}-{place.offset}.body"
        try:
            return f"{reason}; a start keeps a copy in {self._quarantine.keep(name, content)}"
        except OSError as error:
            return f"{reason}; it could not be copied to quarantine: {error}"


def _damaged(path: str, place: PageSlot, reason: str) -> DamagedBody:
    """Return the report about a body that fails its check."""
    where = f"{path} bytes {place.offset}-{place.offset + place.size}"
    return DamagedBody(place, where, reason)
