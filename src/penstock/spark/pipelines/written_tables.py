"""The tables that a step has written: a step does not make one anew that was removed.

A table that is gone, with a checkpoint that has read its events, would be made anew with a gap.
The step's folder has a list of its tables, each with the query that wrote it. A new checkpoint is
a new query, so it may begin a new table.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.vocabulary.errors import IllegalState
from penstock.core.vocabulary.uris import shown

if TYPE_CHECKING:
    from penstock.spark.pipelines.step import MicroBatch
    from penstock.tables import Table

TABLES: Final = "tables.json"
_URI: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class WrittenTables:
    """The list in the folder of a step. On an object store it is not kept."""

    def __init__(self, folder: str) -> None:
        self._path = None if not folder or _URI.match(folder) else _path_in(folder)
        self._known: dict[str, str] = self._read()
        self._checked: set[str] = set()

    def check(self, table: Table, batch: MicroBatch) -> None:
        """Raise ``IllegalState`` if the query wrote the table, which knows nothing of it."""
        if self._path is None or table.uri in self._checked:
            return
        is_known = table.last_of(batch.app) is not None
        if not is_known and self._known.get(table.uri) == batch.app:
            raise IllegalState(
                f"the table at {shown(table.uri)} was removed or replaced, and the checkpoint of "
                f"this step has read its events: a new table would begin with micro-batch "
                f"{batch.number}, without the earlier ones. Put the table back, or remove "
                f"{self._path.parent}, so that the step begins anew"
            )
        self._checked.add(table.uri)
        if is_known:
            self._keep(table, batch)

    def wrote(self, table: Table, batch: MicroBatch) -> None:
        """Note that the query has written the table."""
        if self._path is not None:
            self._keep(table, batch)

    def _keep(self, table: Table, batch: MicroBatch) -> None:
        if self._known.get(table.uri) == batch.app:
            return
        assert self._path is not None, "nothing is kept without a folder"
        self._known[table.uri] = batch.app
        aside = self._path.with_suffix(".new")
        aside.write_bytes(msgspec.json.encode(self._known))
        aside.replace(self._path)

    def _read(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError, RecursionError):
            return {}


def _path_in(folder: str) -> Path:
    return Path(folder.removeprefix("file://")) / TABLES
