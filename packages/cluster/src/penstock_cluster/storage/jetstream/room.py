"""The room on the servers of the engine, between two reads of their state.

A server whose limit is exceeded takes part in nothing any more: then neither streams nor the
register have a majority, and every owner loses its lease. So publishing is refused before that, and
some room is reserved for the writes that free room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.errors import StorageFailed

MESSAGE_BYTES: Final = 256
"""Bytes of a message without its data: subject, headers, checksum."""
SEALING_RESERVE_BYTES: Final = 64 << 20
"""Bytes of disk that publishing leaves free, so that segments and snapshots can still be written.
The journal is cut after that, which frees space."""
REGISTER_RESERVE_BYTES: Final = 16 << 20
"""Bytes of disk that segments and snapshots leave free, for the register and for messages in
flight."""


class EngineRoom:
    """Bytes that a majority of the servers may still store: the reported room, minus the bytes sent
    since the report."""

    def __init__(self, refresh: Callable[[], None] = lambda: None) -> None:
        """``refresh`` is called before the room is checked, and may read the servers again."""
        self._refresh = refresh
        self._reported: int | None = None
        """Room in the latest report of a majority of the servers, in bytes."""
        self._sent_before_report = 0
        """Bytes that had been sent before this report was read."""
        self._sent = 0

    @property
    def free_bytes(self) -> int | None:
        """Bytes of room; None before a majority of the servers has reported its room."""
        if self._reported is None:
            return None
        return max(0, self._reported - (self._sent - self._sent_before_report))

    @property
    def sent(self) -> int:
        """Bytes sent to the servers so far; every later report includes them."""
        return self._sent

    def note_sent(self, data_bytes: int) -> None:
        """Count a message that is sent to be stored."""
        self._sent += data_bytes + MESSAGE_BYTES

    def note_reported(self, room: int | None, sent_before: int) -> None:
        """Replace the reported room of the servers. ``sent_before`` bytes had been sent when the
        read of the report began. ``room`` is None if too few servers answered."""
        if room is not None:
            self._reported, self._sent_before_report = room, sent_before

    def check(self, size: int, reserve: int) -> None:
        """Raise ``StorageFailed`` unless ``size`` bytes leave room for ``reserve``."""
        self._refresh()
        room = self.free_bytes
        if room is not None and size + reserve > room:
            raise StorageFailed(
                f"the storage engine has {room} free bytes; {size} bytes are to be written, and "
                f"{reserve} must stay free. To fix: raise max_file_store in jetstream {{ ... }} of "
                f"nats-server.conf, or use a larger disk"
            )
