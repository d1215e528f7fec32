"""Rows of an archive with the columns that a read of the channel has.

An archive keeps which nulls are meant as the channel stores it: as paths of properties, beside
the columns. What is merged needs them as a read with ``includeNulls`` gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.columns.schema.layout import RESERVED_PREFIX, key_path
from penstock.spark.nulls import NULLS
from penstock.spark.pipelines.states import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PATHS: Final = f"{RESERVED_PREFIX}_nulls"
_DAY: Final = "published_day"
_PLAIN: Final = ("event_id", "published", "tag", "data", "ttl", "priority", "persistent", "headers")
_ON_REQUEST: Final = _PLAIN[4:]


def as_read(archive: DataFrame) -> DataFrame:
    """A table that no archive step has written stays as it is."""
    from pyspark.sql import functions as sf

    has_paths = PATHS in archive.columns  # once an event has set something to null
    if not has_paths and not {_DAY, *_PLAIN}.issubset(archive.columns):
        return archive
    left_out = [name for name in archive.columns if name.startswith(RESERVED_PREFIX)]
    left_out += [name for name in (_DAY, *_ON_REQUEST) if name in archive.columns]
    names = [name for name in archive.columns if name not in (*left_out, *_PLAIN)]
    by_property: dict[str, list[str]] = {}
    for name in names:
        by_property.setdefault(_property(name), []).append(name)
    said = [_said(name, by_property[_property(name)], has_paths=has_paths) for name in names]
    nulls = sf.array_compact(sf.array(*said)) if said else sf.lit(None)
    return archive.withColumn(NULLS, nulls.cast("array<string>")).drop(*left_out)


def _property(column: str) -> str:
    return column.removeprefix("properties.").partition("::")[0]


def _said(name: str, columns: list[str], *, has_paths: bool) -> Column:
    """The name of a column where an event sets it to null: that, or another type, is its value."""
    from pyspark.sql import functions as sf

    path = key_path("", _property(name))
    sets = sf.lit(False)
    if has_paths:
        sets = sf.coalesce(sf.array_contains(column_of(PATHS), path), sets)
    for other in columns:
        if other != name:
            sets |= column_of(other).isNotNull()
    return sf.when(column_of(name).isNull() & sets, sf.lit(name))
