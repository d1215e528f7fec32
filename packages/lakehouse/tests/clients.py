"""Unmodified clients of the catalog: pyiceberg, DuckDB and Polars."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

PATH = "/api/v1/iceberg"


def catalog(url: str, **settings: Any) -> Catalog:
    """Open a realm's catalog with pyiceberg; ``url`` is that of its HTTP port."""
    return load_catalog("realm", type="rest", uri=url + PATH, **settings)


def table(url: str, name: str, namespace: str = "channels") -> Table:
    return catalog(url).load_table((namespace, name))


def by_pyiceberg(url: str, name: str, namespace: str = "channels") -> pa.Table:
    return table(url, name, namespace).scan().to_arrow()


def by_polars(url: str, name: str, namespace: str = "channels") -> pl.DataFrame:
    return pl.scan_iceberg(table(url, name, namespace)).collect()


def connected_duckdb(url: str, attach: str = "AUTHORIZATION_TYPE 'none'") -> Any:
    """Return a connection of DuckDB to which the realm is attached as ``realm``."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    for name in ("httpfs", "avro", "iceberg"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        connection.execute(f"LOAD '{folder / f'{name}.duckdb_extension'}'")
    connection.execute(f"ATTACH '' AS realm (TYPE iceberg, ENDPOINT '{url}{PATH}', {attach})")
    return connection


def by_duckdb(url: str, name: str, namespace: str = "channels") -> pa.Table:
    connection = connected_duckdb(url)
    try:
        return connection.sql(f'SELECT * FROM realm.{namespace}."{name}"').to_arrow_table()
    finally:
        connection.close()
