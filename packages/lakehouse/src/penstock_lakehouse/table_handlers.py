"""The handler of loads of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock_core.api.requests import Request
from penstock_core.api.tables import LoadTable, LocateTable, TableFiles
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import Handler

if TYPE_CHECKING:
    from penstock_lakehouse.channel_tables import LoadedTable


async def load_table(caller: Caller, request: LoadTable) -> LoadedTable:
    # Imported here because it loads Parquet and Avro, and the handlers of all packages are loaded
    # with the first request that needs one of them.
    from penstock_lakehouse.channel_tables import tables_of

    opened = caller.realm.shard.state.opened(request.channel)
    return await tables_of(caller.realm).load(
        request.channel, opened.epoch(caller.realm.identity), caller.principal
    )


async def locate_table(caller: Caller, request: LocateTable) -> TableFiles:
    from penstock_lakehouse.channel_tables import tables_of

    opened = caller.realm.shard.state.opened(request.channel)
    return await tables_of(caller.realm).locate(
        request.channel, opened.epoch(caller.realm.identity), caller.principal
    )


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = {
    LoadTable: load_table,
    LocateTable: locate_table,
}
