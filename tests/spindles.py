"""Storage settings with a chosen size of files, for channels of any type."""

from __future__ import annotations

from penstock_core.vocabulary.definitions import Storage


def spindles(type: str, rows: int) -> Storage:
    """Return settings for files of ``rows`` events (0: one file), if this type of store has any."""
    return Storage(events_per_spindle=rows) if type in ("mixed", "persistent") else Storage()
