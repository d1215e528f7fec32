"""The limits of a realm, which its settings configure."""

from __future__ import annotations

from msgspec import Struct

from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.store.large_blocks import BLOCK_BYTES_MAX
from penstock_server.runtime.subscriptions.lease_book import LeaseLimits
from penstock_server.runtime.writer.placement import MemoryLimits

BACKLOG_BYTES_MAX = 64 << 20
PAGE_BYTES_MAX = 32 << 20


class SearchLimits(Struct, frozen=True):
    """Limits of a search for the newest events."""

    examined_max: int = 1_000_000
    """Maximum number of stored events that one page examines; the next page continues where it
    ends."""
    first_part: int = 1_000
    """Events in the first part of a search with a selector."""
    part_max: int = 50_000
    """Maximum number of events in a later part."""
    page_bytes_max: int = PAGE_BYTES_MAX


class TableLimits(Struct, frozen=True):
    """Limits of channels that are loaded as tables (SEM B5)."""

    fresh_ms: int = 0
    """Milliseconds for which loads share a snapshot."""
    hold_s: int = 600
    """Seconds for which the files of a loaded table can be read."""
    cache_bytes_max: int = 4 << 30
    """Bytes of all files of tables."""
    memory_events_max: int = 1_000_000
    """Events of a channel in memory that a table may have."""
    snapshots_per_user_max: int = 200


class Limits(Struct, frozen=True):
    """Limits and intervals of a realm."""

    event_bytes_max: int = 20 << 20
    memory: MemoryLimits = MemoryLimits()
    """Limits for each kind of memory (SEM C6)."""
    stage_bytes_max: int = 2 << 30
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    """Bytes of waiting publishes above which connections are not read."""
    tail_bytes_max: int = 512 << 20
    """Bytes of unsealed events above which publishers wait for the sealing."""
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Maximum number of bytes of events in a block of the log on a storage engine; larger groups of
    events go into a blob."""
    sweep_interval_s: float = 1.0
    """Seconds between two searches for expired events (SEM T1)."""
    selectors: SelectorLimits = SelectorLimits()
    search: SearchLimits = SearchLimits()
    leases: LeaseLimits = LeaseLimits()
    """Limits for events that clients have fetched over HTTP and not settled (SEM H3)."""
    tables: TableLimits = TableLimits()
    """Limits of channels that are loaded as tables (SEM B5)."""
