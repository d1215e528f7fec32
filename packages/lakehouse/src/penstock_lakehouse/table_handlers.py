"""Handlers of the requests that load a table or locate its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock_core.api.requests import Request
from penstock_core.api.tables import (
    LoadTable,
    LocateSealedTable,
    LocateTable,
    SealedTableFiles,
    TableFiles,
)
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import Handler

if TYPE_CHECKING:
    from penstock_lakehouse.channel_tables import LoadedTable


async def load_table(caller: Caller, request: LoadTable) -> LoadedTable:
    # Imported here because the module loads Parquet and Avro: the first request that needs any
    # handler loads the handler modules of all packages.
    from penstock_lakehouse.channel_tables import tables_of

    epoch = _epoch_of(caller, request.channel)
    return await tables_of(caller.realm).load(request.channel, epoch, caller.principal)


async def locate_table(caller: Caller, request: LocateTable) -> TableFiles:
    from penstock_lakehouse.channel_tables import tables_of

    epoch = _epoch_of(caller, request.channel)
    return await tables_of(caller.realm).locate(request.channel, epoch, caller.principal)


async def locate_sealed_table(caller: Caller, request: LocateSealedTable) -> SealedTableFiles:
    from penstock_lakehouse.channel_tables import tables_of

    epoch = _epoch_of(caller, request.channel)
    return await tables_of(caller.realm).locate_sealed(
        request.channel,
        epoch,
        caller.principal,
        span=Span(request.first_id, request.end_id),
        rows_min=request.rows_min,
    )


def _epoch_of(caller: Caller, channel: ChannelId) -> str:
    """Return the text that identifies the sequence of ids of a channel or queue.

    It differs after the channel was deleted and created again. Raises ``NameDoesNotExist``.
    """
    state = caller.realm.shard.state
    if channel not in state.channels:
        raise NameDoesNotExist(f"channel or queue number {channel} does not exist")
    return state.opened(channel).epoch(caller.realm.identity)


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = {
    LoadTable: load_table,
    LocateTable: locate_table,
    LocateSealedTable: locate_sealed_table,
}
