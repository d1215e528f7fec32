"""The limits of a realm, which its settings configure."""

from __future__ import annotations

from msgspec import Struct

from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.store.large_blocks import BLOCK_BYTES_MAX
from penstock_server.runtime.subscriptions.lease_book import LeaseLimits
from penstock_server.runtime.writer.placement import MemoryLimits

BACKLOG_BYTES_MAX = 64 << 20
"""Default of :attr:`Limits.backlog_bytes_max`."""
PAGE_BYTES_MAX = 32 << 20
"""Default of :attr:`SearchLimits.page_bytes_max`."""


class SearchLimits(Struct, frozen=True):
    """Limits of a search for the newest events."""

    examined_max: int = 1_000_000
    """Largest number of stored events that one page of the result examines. The next page continues
    where this one ends."""
    first_part: int = 1_000
    """Number of events in the first part of a search with a selector."""
    part_max: int = 50_000
    """Largest number of events in a later part."""
    page_bytes_max: int = PAGE_BYTES_MAX
    """Limit on the bytes of the events of one page."""


class TableLimits(Struct, frozen=True):
    """Limits of channels that are loaded as tables (SEM B5)."""

    fresh_ms: int = 0
    """Milliseconds during which several loads of a table share one snapshot."""
    hold_s: int = 600
    """Seconds until the files of a loaded table may disappear."""
    cache_bytes_max: int = 4 << 30
    """Limit on the bytes of the files of all tables."""
    memory_events_max: int = 1_000_000
    """Limit on the events of a table that are only in memory."""
    snapshots_per_user_max: int = 200
    """Limit on the snapshots that one user has at the same time."""


class Limits(Struct, frozen=True):
    """Limits and intervals of a realm."""

    event_bytes_max: int = 20 << 20
    memory: MemoryLimits = MemoryLimits()
    """Limits for each kind of memory (SEM C6)."""
    stage_bytes_max: int = 2 << 30
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """Bytes of waiting publishes above which the realm reads nothing from connections."""
    tail_bytes_max: int = 512 << 20
    """Bytes of unsealed events above which publishers wait until events are sealed."""
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Largest size in bytes of the events in a block of a storage engine's log; the events of
    larger blocks are stored in a blob."""
    sweep_interval_s: float = 1.0
    """Seconds between two searches for expired events (SEM T1)."""
    selectors: SelectorLimits = SelectorLimits()
    search: SearchLimits = SearchLimits()
    leases: LeaseLimits = LeaseLimits()
    """Limits for events that clients have fetched over HTTP and not settled (SEM H3)."""
    tables: TableLimits = TableLimits()
    """Limits of channels that are loaded as tables (SEM B5)."""
