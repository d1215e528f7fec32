"""Tables of one format, as a definition names them and as other programs read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from packages.spark.tests.pipelines.deltas import rows_in


class Places:
    """Places for Delta tables in a folder or, with a catalog, for Iceberg tables."""

    def __init__(self, folder: Path, catalog: Catalog | None = None) -> None:
        self._folder = folder
        self._catalog = catalog

    def table(self, name: str) -> str:
        """Return the path, relative to the folder, or the URI of a table."""
        return name if self._catalog is None else f"iceberg://{self._catalog.name}/lake/{name}"

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of a table, in no particular order."""
        if self._catalog is None:
            return rows_in(self._folder / name)
        table_rows: list[dict[str, Any]] = (
            self._catalog.load_table(("lake", name)).scan().to_arrow().to_pylist()
        )
        return table_rows
