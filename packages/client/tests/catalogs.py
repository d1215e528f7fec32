"""A catalog of Iceberg tables for tests: SQLite and a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

NAME = "prod"
"""Name of the catalog in URIs."""


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that describe a catalog in a folder."""
    return {
        f"PYICEBERG_CATALOG__{NAME.upper()}__URI": f"sqlite:///{folder}/catalog.db",
        f"PYICEBERG_CATALOG__{NAME.upper()}__WAREHOUSE": f"file://{folder}/warehouse",
    }


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Describe a catalog in a folder to this process, and return it as other programs see it."""
    for name, value in variables(folder).items():
        monkeypatch.setenv(name, value)
    return catalog_in(folder)


def catalog_in(folder: Path) -> Catalog:
    return load_catalog(
        NAME, uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
