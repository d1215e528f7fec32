"""Tables of Parquet files with exactly-once appends: Delta tables, Iceberg tables and plain
folders.

:class:`Table` is the public class. Spark is not needed. Delta tables need the package `deltalake`,
Iceberg tables the package `pyiceberg`.
"""

from __future__ import annotations

from penstock.tables.log import DataFile, Format
from penstock.tables.table import Compacted, Table

__all__ = ["Compacted", "DataFile", "Format", "Table"]
