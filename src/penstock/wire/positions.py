"""Where a query of Spark stands on our channels, as its checkpoint says."""

from __future__ import annotations

from typing import Any

import msgspec


def positions_in(text: Any) -> dict[str, int]:
    """The next id of each channel of an offset as the source writes it; empty for other texts."""
    try:
        offset = msgspec.json.decode(text) if isinstance(text, str | bytes) else text
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    channels = offset.get("c") if isinstance(offset, dict) else None
    if not isinstance(channels, dict):
        return {}
    return {
        name: place["n"]
        for name, place in channels.items()
        if isinstance(place, dict) and isinstance(place.get("n"), int)
    }
