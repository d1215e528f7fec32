"""Temporary refusals of all publishes, on the whole realm or on one channel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock_core.vocabulary.errors import PublishingPaused, StorageFailed

if TYPE_CHECKING:
    from penstock_server.runtime.writer.group import Group


def refuse_stopped(group: Group, numbers: Iterable[int]) -> None:
    """Raise ``PublishingPaused`` while an administrator has paused publishing (SEM X5). Raise
    ``StorageFailed`` for a channel with too many events that cannot be sealed."""
    if group.state.directory.publishing_paused:
        raise PublishingPaused(
            "publishing is paused on this realm; try again once an administrator resumes it"
        )
    for number in numbers:
        if (size := group.state.unsealable.get(number)) is not None:
            raise StorageFailed(
                f"{group.channel(number).state.name} accepts no events: {size} bytes of its events "
                f"are in memory and cannot be sealed (an incident of the task 'sealing'); see the "
                f"realm's log and /health"
            )
