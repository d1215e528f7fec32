"""Positions of a Spark query on channels, as stored in its checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.nesting import check_json_nesting


def positions_in(text: Any) -> dict[str, int]:
    """Return the next id of each channel in an offset of the Spark source; an empty dictionary for
    other texts."""
    try:
        if isinstance(text, str | bytes):
            check_json_nesting(text)
        offset = msgspec.json.decode(text) if isinstance(text, str | bytes) else text
    except (InvalidArgument, msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    channels = offset.get("c") if isinstance(offset, dict) else None
    if not isinstance(channels, dict):
        return {}
    return {
        name: place["n"]
        for name, place in channels.items()
        if isinstance(place, dict) and isinstance(place.get("n"), int)
    }
