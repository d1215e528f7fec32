"""Files of a chosen size, for channels of any type."""

from __future__ import annotations

from penstock_core.vocabulary.definitions import Storage


def spindles(type: str, rows: int) -> Storage:
    """Files of so many events, 0 for a single one, where stores of this type have files."""
    return Storage(events_per_spindle=rows) if type in ("mixed", "persistent") else Storage()
