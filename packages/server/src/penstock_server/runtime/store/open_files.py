"""The open files of all channels, within a limit (SEM S, caching)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from penstock_core.columns.files.segments import SegmentReader
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.ports import Blobs, Offload
from penstock_server.runtime.store.sealed_file import SealedFile
from penstock_server.runtime.store.state import RealmState

FILES_MAX = 512
"""Limit on open files, because each needs a file descriptor."""
CACHE_BYTES_MAX = 4 << 30
"""Default limit on the bytes of open files."""


_log = logger("penstock.files")


class OpenFiles:
    """Mapped files with their verified batches. The least recently read file is closed first. The
    limit is on the address space of the process, not on its memory, because files are mapped."""

    def __init__(self, blobs: Blobs, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._blobs = blobs
        self.bytes_max, self.files_max = bytes_max, FILES_MAX
        self._open: OrderedDict[SealedFile, int] = OrderedDict()
        self.bytes = 0
        """Bytes of all open files."""

    async def open(self, files: Iterable[SealedFile]) -> None:
        """Open files, and keep them open at least until the next call.

        A file that cannot be opened is logged and stays closed: its events count as damaged.
        """
        to_open = list(files)
        for file in to_open:
            if file.is_open:
                self._open.move_to_end(file)
                continue
            self.close(file)  # if the file has grown, its old mapping is still open
            try:
                buffer = await self._blobs.get(file.name)
            except PenstockError as error:
                _log.error("segment.unreadable", name=file.name, reason=str(error))
                file.is_unreadable = True
                continue
            file.reader = SegmentReader(buffer, file.index, name=file.name)
            self._open[file] = len(buffer)
            self.bytes += len(buffer)
        if self.bytes > self.bytes_max or len(self._open) > self.files_max:
            self._shrink(len(to_open))

    async def pin(self, files: Iterable[SealedFile]) -> None:
        """Open files and keep them open, even above the limit."""
        # Marked before they are opened, so that opening them closes none of them.
        to_pin = list(files)
        for file in to_pin:
            file.is_pinned = True
        await self.open(to_pin)

    def close(self, file: SealedFile) -> None:
        """Close a file and drop its verified batches."""
        file.reader = None
        self.bytes -= self._open.pop(file, 0)

    async def load(self, state: RealmState, offload: Offload) -> list[str]:
        """Read the files of channels with ``cache_on_reload``, as far as the limit allows, and
        return the damage in them (SEM S, cache_on_reload)."""
        damage: list[str] = []
        for channel_id, channel in state.channels.items():
            storage = channel.state.definition.storage
            if not (storage.cache_on_reload and storage.enable_caching):
                continue
            for file in state.stores[channel_id].files:
                if (
                    self.bytes + file.index.size > self.bytes_max
                    or len(self._open) >= self.files_max
                ):
                    _log.warning("files.not_all_loaded", channel=channel.state.name)
                    return damage
                await self.open([file])
                if file.reader is not None:
                    damage += await offload(file.reader.check)
        return damage

    def _shrink(self, newest_count: int) -> None:
        """Close files, the least recently read first, until the limits are met. The newest
        ``newest_count`` files stay open, because they are about to be read."""
        # The files that were just opened or read are at the end of the dictionary.
        for file in list(self._open)[: max(0, len(self._open) - newest_count)]:
            if self.bytes <= self.bytes_max and len(self._open) <= self.files_max:
                return
            if not file.is_pinned:
                self.close(file)
