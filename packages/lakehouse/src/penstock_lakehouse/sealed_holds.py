"""The holds on files of sealed events that archivers take over (SEM B8)."""

from __future__ import annotations

from msgspec import Struct

from penstock_lakehouse.file_store import FileHold


class SealedHold(Struct, eq=False):
    """The files of one answer, and the time until which they are held."""

    files: FileHold
    until_us: int
    """Microseconds since 1970."""


class SealedHolds:
    """The holds of all users: one for each table, because an archiver needs no file of an earlier
    answer when it sends its next request."""

    def __init__(self, per_user_max: int) -> None:
        self._per_user_max = per_user_max
        self._holds: dict[str, dict[str, SealedHold]] = {}
        """Holds by user and UUID of the table, the least recently requested first."""

    def replace(self, user: str, table_uuid: str, hold: SealedHold) -> None:
        """Set a user's hold on files of a table, and release the one before. If the user has the
        maximum number, the hold that was not requested for longest is released."""
        holds = self._holds.setdefault(user, {})
        if (earlier := holds.pop(table_uuid, None)) is not None:
            earlier.files.release()
        elif len(holds) >= self._per_user_max:
            holds.pop(next(iter(holds))).files.release()
        holds[table_uuid] = hold

    def expire(self, now_us: int) -> None:
        """Release the holds whose time is over."""
        for user, holds in list(self._holds.items()):
            for table_uuid, hold in list(holds.items()):
                if hold.until_us <= now_us:
                    holds.pop(table_uuid).files.release()
            if not holds:
                del self._holds[user]
