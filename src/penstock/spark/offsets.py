"""Where a read stands: event ids, and the channel they belong to.

Spark keeps a stream's position as JSON text in its checkpoint and compares the texts, so equal
positions have to be written the same: keys sorted, whole numbers only.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.client.sync import Channel
from penstock.core.errors import IllegalState, InvalidArgument
from penstock.spark.connections import Link
from penstock.spark.options import SourceOptions

VERSION: Final = 1

Offset = dict[str, Any]


def encode(channel: str, epoch: str, event_id: int) -> Offset:
    """The position before event ``event_id`` of a channel."""
    return {"c": {channel: {"e": epoch, "n": event_id}}, "v": VERSION}


def decode(offset: Offset, channel: str, epoch: str) -> int:
    """The event id of a position that :func:`encode` wrote for this very channel.

    Raises ``IllegalState`` when the name means another channel now, ``InvalidArgument`` when
    the position is none of this channel's.
    """
    version = offset.get("v")
    if version != VERSION:
        raise InvalidArgument(
            f"the checkpoint has positions of format {version}; this version reads {VERSION}"
        )
    position = offset["c"].get(channel)
    if position is None:
        raise InvalidArgument(
            f"the checkpoint is for channel {', '.join(offset['c'])}, the query reads {channel}; "
            "give each query a checkpoint of its own"
        )
    if position["e"] != epoch:
        raise IllegalState(
            f"channel {channel} is not the one this checkpoint was made with: it was deleted and "
            "created again, or the realm's data were exchanged; start with a new checkpoint"
        )
    return int(position["n"])


def first_wanted(options: SourceOptions, link: Link, default: str) -> int:
    """The event id where a read without a checkpoint begins."""
    starting = default if options.starting is None else options.starting
    if isinstance(starting, int):
        return starting
    if starting == "latest":
        return link.end
    if starting == "earliest":
        return first_stored(link.channel)
    with link.channel.subscribe(start=starting) as subscription:
        return subscription.first_id


def first_stored(channel: Channel) -> int:
    """The lowest id an event is stored under; the next one to be given when there is none."""
    info = channel.info()
    return info.last_event_id + 1 if info.first_event_id is None else info.first_event_id
