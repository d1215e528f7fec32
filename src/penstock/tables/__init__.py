"""Tables of Parquet files that are appended to exactly once: Delta tables and plain ones.

:class:`Table` is the door. Nothing here needs Spark; Delta tables need the package `deltalake`.
"""

from __future__ import annotations

from penstock.tables.files import DataFile
from penstock.tables.log import Format
from penstock.tables.table import Compacted, Table

__all__ = ["Compacted", "DataFile", "Format", "Table"]
