"""Reads a CSV file that is the table of a pipeline, without changing identifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.csv_cells import LONG, NOT_PLAIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_DEFAULTS: Final = {"header": "true", "inferSchema": "true"}
_SUFFIXED: Final = "[dDfF]$"
"""Numbers with a suffix of Java, which only Spark reads as numbers: 12F would become 12.0."""


def read_csv(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return a CSV file as a DataFrame; ``options`` are those of Spark's format ``csv``.

    Types are inferred, unless the options say otherwise. A column of numbers remains text if a
    number in it is not written as a plain number or would be rounded (SEM E11): such a column holds
    identifiers. Looking for them takes one more job.
    """
    chosen = _DEFAULTS | {_known_spelling(option): text for option, text in options.items()}
    inferred = spark.read.format("csv").options(**chosen).load(path)
    if chosen["inferSchema"].lower() != "true":
        return inferred
    texts = spark.read.format("csv").options(**chosen | {"inferSchema": "false"}).load(path)
    identifiers = _identifier_columns(inferred, texts)
    if not identifiers:
        return inferred
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType(
        [
            StructField(column.name, StringType()) if column.name in identifiers else column
            for column in inferred.schema
        ]
    )
    return spark.read.format("csv").options(**chosen).schema(schema).load(path)


def _known_spelling(option: str) -> str:
    """Return a default option's own spelling; Spark ignores the case of options."""
    return next((name for name in _DEFAULTS if name.lower() == option.lower()), option)


def _identifier_columns(inferred: DataFrame, texts: DataFrame) -> set[str]:
    """Return the columns of numbers in which a cell would change as a number. ``texts`` has the
    cells as they are written."""
    from pyspark.sql import functions
    from pyspark.sql.types import NumericType

    numbers = {
        column.name: column.dataType
        for column in inferred.schema
        if isinstance(column.dataType, NumericType)
    }
    if not numbers:
        return set()
    found = texts.agg(
        *[functions.max(_changes(texts, name, kind)) for name, kind in numbers.items()]
    ).first()
    assert found is not None, "an aggregate without groups has one row"
    return {name for name, changes in zip(numbers, found, strict=True) if changes}


def _changes(texts: DataFrame, name: str, kind: DataType) -> Column:
    """Return whether a cell changes when it is read as a number of a type."""
    from pyspark.sql import functions
    from pyspark.sql.types import FractionalType

    quoted = name.replace("`", "``")
    cell = functions.trim(texts[f"`{quoted}`"])
    changes: Column = cell.rlike(NOT_PLAIN) | cell.rlike(_SUFFIXED)
    if isinstance(kind, FractionalType):
        becomes_infinite = functions.abs(cell.try_cast("double")) == float("inf")
        changes |= cell.rlike(r"^-?[0-9]") & becomes_infinite
    if kind.typeName() == "double":
        changes |= cell.rlike(LONG)
    return changes
