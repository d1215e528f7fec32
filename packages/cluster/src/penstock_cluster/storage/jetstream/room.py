"""The room that the servers of the engine have, between two looks at them.

A server whose limit is exceeded takes part in nothing any more: neither streams nor the register
have a majority then, and every owner loses its lease. So publishing is refused before that, and
some room is kept for what makes room again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.errors import StorageFailed

MESSAGE_BYTES: Final = 256
"""What a message takes beside its data: subject, headers, checksum."""
EVENTS_KEEP: Final = 64 << 20
"""Room that events leave for segments and snapshots: the journal is cut once these are written."""
BLOBS_KEEP: Final = 16 << 20
"""Room that segments and snapshots leave for the register and what is on its way."""


class EngineRoom:
    """Bytes that a majority of the servers may still store: as they said, less what was sent to
    them since."""

    def __init__(self, refresh: Callable[[], None] = lambda: None) -> None:
        """``refresh`` is called before the room is used, and may look at the servers anew."""
        self._refresh = refresh
        self._said: int | None = None
        self._sent_by_then = 0
        self._sent = 0

    @property
    def left(self) -> int | None:
        """Bytes of room; None while no majority of the servers has said how much it has."""
        if self._said is None:
            return None
        return max(0, self._said - (self._sent - self._sent_by_then))

    @property
    def sent(self) -> int:
        """Bytes sent to the servers so far: what a look that begins now has seen."""
        return self._sent

    def note_sent(self, data_bytes: int) -> None:
        """Count a message that is sent to be stored."""
        self._sent += data_bytes + MESSAGE_BYTES

    def note_said(self, room: int | None, sent_by_then: int) -> None:
        """Take over what a look at the servers has shown, which began when ``sent_by_then`` bytes
        had been sent. ``room`` is None when too few of them answered."""
        if room is not None:
            self._said, self._sent_by_then = room, sent_by_then

    def check(self, size: int, keep: int) -> None:
        """Raise ``StorageFailed`` unless ``size`` bytes leave room for ``keep``."""
        self._refresh()
        left = self.left
        if left is not None and size + keep > left:
            raise StorageFailed(
                f"the engine has room for {left} bytes, not for {size} and the {keep} that are "
                f"kept free. To change: a larger max_file_store within jetstream {{ ... }} of "
                f"nats-server.conf, or a larger disk"
            )
