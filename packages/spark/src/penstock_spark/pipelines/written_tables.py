"""Records the tables that a step has written, so that the step does not recreate a removed table.

If a table was removed but the checkpoint remains, a recreated table would lack the earlier events.
The step's folder contains a list of the step's tables, each with the id of the query that wrote the
table. A new checkpoint is a new query, which may begin a new table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.uris import shown
from penstock_spark.writing.checkpoint_folder import folder_at

if TYPE_CHECKING:
    from penstock.tables import Table
    from penstock_spark.pipelines.step import MicroBatch

TABLES: Final = "tables.json"
"""Name of the file with the list."""


class WrittenTables:
    """The list of the tables of a step. Without a folder, no list is stored and all checks pass."""

    def __init__(self, folder: str) -> None:
        self._folder_uri = folder
        self._folder = folder_at(folder) if folder else None
        self._query_by_table: dict[str, str] = self._read()
        self._checked_uris: set[str] = set()

    def check(self, table: Table, batch: MicroBatch) -> None:
        """Raise ``IllegalState`` if the query wrote the table earlier, but the table has none of
        the query's commits, because it was removed or replaced."""
        if self._folder is None or table.uri in self._checked_uris:
            return
        is_known = table.last_of(batch.app) is not None
        if not is_known and self._query_by_table.get(shown(table.uri)) == batch.app:
            raise IllegalState(
                f"the table at {shown(table.uri)} was removed or replaced, but the checkpoint of "
                f"this step has read its events: a new table would begin with micro-batch "
                f"{batch.number}, without the earlier ones. Restore the table, or remove "
                f"{shown(self._folder_uri)}, so that the step starts over"
            )
        self._checked_uris.add(table.uri)
        if is_known:
            self._record(table, batch)

    def wrote(self, table: Table, batch: MicroBatch) -> None:
        """Record that the query of ``batch`` has written the table."""
        if self._folder is not None:
            self._record(table, batch)

    def _record(self, table: Table, batch: MicroBatch) -> None:
        name = shown(table.uri)  # secrets in the URI must not be stored
        if self._query_by_table.get(name) == batch.app:
            return
        assert self._folder is not None, "nothing is recorded without a folder"
        self._query_by_table[name] = batch.app
        self._folder.write(TABLES, msgspec.json.encode(self._query_by_table))

    def _read(self) -> dict[str, str]:
        if self._folder is None:
            return {}
        try:
            content = self._folder.read(TABLES)
            return {} if content is None else msgspec.json.decode(content, type=dict[str, str])
        except (msgspec.DecodeError, RecursionError):
            return {}
