"""Temporary refusals of all publishes, on the whole realm or on one channel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock_core.vocabulary.errors import PublishingPaused, StorageFailed

if TYPE_CHECKING:
    from penstock_server.runtime.writer.group import Group


def refuse_stopped(group: Group, channel_ids: Iterable[int]) -> None:
    """Raise ``PublishingPaused`` while an administrator has paused publishing (SEM X5). Raise
    ``StorageFailed`` for a channel with too many events that cannot be sealed."""
    if group.state.directory.publishing_paused:
        raise PublishingPaused(
            "publishing is paused on this realm; try again once an administrator resumes it"
        )
    for channel_id in channel_ids:
        if (size := group.state.unsealable.get(channel_id)) is not None:
            raise StorageFailed(
                f"{group.channel(channel_id).state.name} accepts no events: {size} bytes of its "
                f"events are in memory and cannot be sealed (an incident of the task 'sealing'); "
                f"see the realm's log and /health"
            )
