"""Captures the data directory of a running realm at one moment and reads it over the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from penstock.client.connection.connection import RealmConnection
from penstock_core.api.backup_files import is_data_file
from penstock_core.api.transfers import BackupBegun, BeginBackup, EndBackup, ReadBackup
from penstock_core.columns.schema.moments import YEAR_10000_US
from penstock_core.vocabulary.errors import DamagedBackup, PenstockError


class RealmCapture:
    """The files of a realm at one moment. The realm does not change them until the capture
    ends."""

    def __init__(self, connection: RealmConnection, begun: BackupBegun) -> None:
        self._connection = connection
        self.begun = begun
        self.is_complete = False
        """Whether the realm may count the capture as a backup. The caller sets it when it has
        stored all files."""

    async def read(self, number: int, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes of the file ``number`` from ``offset`` to its end.

        Raises ``DamagedBackup`` if the file does not have the announced size, ``ConnectionLost``.
        """
        file = self.begun.files[number]
        while offset < file.size:
            message = ReadBackup(self.begun.backup, number, offset)
            part = await self._connection.ask(message, bytes, resend=False, waits=False)
            if not 0 < len(part) <= file.size - offset:
                raise DamagedBackup(
                    f"{file.name} does not have the size that the realm announced; start again"
                )
            yield part
            offset += len(part)


@asynccontextmanager
async def realm_capture(
    connection: RealmConnection, refusal: type[PenstockError]
) -> AsyncIterator[RealmCapture]:
    """Have the realm capture its data directory, and end the capture after the block.

    Raises an error of the class ``refusal`` if the realm's answer is not valid, ``IllegalState`` if
    the realm is in memory, ``Unavailable`` during another backup, ``ConnectionLost``.
    """
    begun = await connection.ask(BeginBackup(), BackupBegun, resend=False)
    capture = RealmCapture(connection, begun)
    try:
        if not 0 <= begun.at_us < YEAR_10000_US:
            raise refusal(
                f"the realm reports a backup made at {begun.at_us}, which is not a valid time"
            )
        # A hostile realm must not make the client write outside its folder.
        for file in begun.files:
            if not is_data_file(file.name) or file.size < 0 or file.stamp < 0:
                raise refusal(
                    f"the realm sent a file {file.name[:200]!r} of {file.size} bytes, which cannot "
                    f"be part of a data directory; nothing was copied"
                )
        yield capture
    finally:
        with suppress(PenstockError):  # if this fails, the realm ends it with the connection
            ended = EndBackup(begun.backup, is_complete=capture.is_complete)
            await connection.request(ended, resend=False, waits=False)
