"""Opens an embedded store on any disk, with a clock, an identity and limits that the test sets."""

from __future__ import annotations

from penstock_core.vocabulary.ports import inline
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded import Embedded, JournalLimits, PageLimits, open_embedded

IDENTITY = 0x5EED
"""Id of every journal that a test creates."""


class StillClock:
    """A clock that moves only by :meth:`advance`."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def steady_us(self) -> int:
        return self._now_us

    def advance(self, by_us: int) -> None:
        """Move the clock forward by ``by_us`` microseconds."""
        self._now_us += by_us


def open_store(
    root: str,
    disk: Disk,
    *,
    file_bytes_max: int = 1 << 20,
    allocation_bytes: int = 1 << 12,
    trimmed_bytes_max: int = 1 << 12,
    page_bytes_min: int = 1 << 10,
    page_bytes_max: int = 1 << 12,
    holder: str = "a test",
    identity: int = IDENTITY,
) -> Embedded:
    """Return the result of ``open_embedded`` with small files, so that a test with little data
    begins new files."""
    return open_embedded(
        root,
        disk=disk,
        offload=inline,
        clock=StillClock(),
        identity=lambda: identity,
        holder=holder,
        limits=JournalLimits(
            file_bytes_max=file_bytes_max,
            allocation_bytes=allocation_bytes,
            trimmed_bytes_max=trimmed_bytes_max,
        ),
        page_limits=PageLimits(page_bytes_min=page_bytes_min, page_bytes_max=page_bytes_max),
    )
