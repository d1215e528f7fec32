"""The position of a read: for each channel the id of its next event.

Spark stores a stream's position as JSON text in its checkpoint and compares the texts. So equal
positions must have equal texts: channels are sorted, numbers are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

VERSION: Final = 1

Offset = dict[str, Any]


class Position(Struct, frozen=True):
    """The position before event ``event_id`` of a channel."""

    epoch: str
    """Identity of the channel; it changes when the channel is deleted and created again."""
    event_id: int


Positions = dict[str, Position]


def encode(positions: Mapping[str, Position]) -> Offset:
    """Return positions as the JSON value that Spark stores."""
    channels = {
        name: {"e": position.epoch, "n": position.event_id}
        for name, position in sorted(positions.items())
    }
    return {"c": channels, "v": VERSION}


def decode(offset: Offset) -> Positions:
    """Return the positions in a value of :func:`encode`. Raises ``InvalidArgument`` for another
    format."""
    version = offset.get("v")
    if version != VERSION:
        raise InvalidArgument(
            f"the checkpoint has positions of format {version}; this version reads {VERSION}"
        )
    return {
        name: Position(position["e"], int(position["n"]))
        for name, position in sorted(offset["c"].items())
    }
