"""The tables of archives: the location of each channel's table, and the check that the table
belongs to the channel."""

from __future__ import annotations

from msgspec import Struct

from penstock.client.sync.sync import Destination
from penstock.tables import Format, Table
from penstock.tables.attempts import PausingClock
from penstock_core.columns.files.archives import DAY, identity_of
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_core.vocabulary.names import file_part
from penstock_core.vocabulary.uris import shown


class Lake(Struct, frozen=True):
    """The location and layout of archives."""

    uri: str
    """The table; with ``several``, the folder or the namespace with a table for each channel."""
    format: Format = "delta"
    several: bool = False
    by_day: bool = True
    """Whether tables are partitioned by the day of ``published``."""

    def uri_of(self, channel: str) -> str:
        """Return the URI of the table of a channel."""
        if not self.several:
            return self.uri
        return f"{self.uri.rstrip('/')}/{file_part(channel)}"

    def table_of(self, channel: str, clock: PausingClock | None = None) -> Table:
        """Return the table of a channel. ``clock`` is for the pauses between attempts of its
        commits."""
        partition_by = [DAY] if self.by_day else []
        return Table.open(self.uri_of(channel), self.format, partition_by, clock=clock)

    def check_identity(self, table: Table, channel: str, epoch: str) -> None:
        """Raise ``IllegalState`` if the table is the archive of another channel, and
        ``InvalidArgument`` if it is not an archive."""
        if not table.exists:
            return
        place = shown(self.uri_of(channel))
        try:
            name, stored_epoch = identity_of(table.schema)
        except InvalidArgument as error:
            raise InvalidArgument(f"{place}: {error}; choose another") from error
        if (name, stored_epoch) != (channel, epoch):
            raise IllegalState(
                f"the table at {place} is the archive of channel {name} of an earlier time or "
                f"another realm: {channel} has other events under the same ids; choose another "
                f"table"
            )

    def register(self, channel: str, store: Destination) -> None:
        """Set the attribute ``archive`` of a channel, unless it is set."""
        if not store.info().definition.archive:
            store.edit(archive=self.uri_of(channel))
