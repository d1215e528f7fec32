"""The positions of a read: for each channel, the id of the next event to read.

Spark stores a stream's positions as JSON text in its checkpoint and compares the texts. Equal
positions must therefore have equal texts: channels are sorted, and numbers are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

VERSION: Final = 1
"""Version of the JSON format of positions."""

Offset = dict[str, Any]
"""The JSON value of positions, which Spark calls an offset."""


class Position(Struct, frozen=True):
    """The position of a read in one channel."""

    epoch: str
    """Identity of the channel, which changes when the channel is deleted and created again."""
    event_id: int
    """Id of the next event to read."""


Positions = dict[str, Position]
"""Positions by name of the channel."""


def encode(positions: Mapping[str, Position]) -> Offset:
    """Return positions as the JSON value that Spark stores."""
    channels = {
        name: {"e": position.epoch, "n": position.event_id}
        for name, position in sorted(positions.items())
    }
    return {"c": channels, "v": VERSION}


def decode(offset: Offset) -> Positions:
    """Return the positions in a JSON value that :func:`encode` made.

    Raises ``InvalidArgument`` if the value has another version of the format.
    """
    version = offset.get("v")
    if version != VERSION:
        raise InvalidArgument(
            f"the checkpoint has positions of format {version}; this version reads {VERSION}"
        )
    return {
        name: Position(position["e"], int(position["n"]))
        for name, position in sorted(offset["c"].items())
    }
