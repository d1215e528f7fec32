"""The handler of loads of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_core.api.requests import Request
from penstock_core.api.tables import LoadTable
from penstock_lakehouse.channel_tables import LoadedTable, tables_of
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import Handler


async def load_table(by: Caller, request: LoadTable) -> LoadedTable:
    opened = by.realm.shard.state.opened(request.channel)
    return await tables_of(by.realm).load(
        request.channel, opened.epoch(by.realm.identity), by.principal
    )


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = {LoadTable: load_table}
