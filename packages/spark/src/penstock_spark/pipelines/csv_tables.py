"""Reads a CSV file as a table of a pipeline, and keeps identifiers such as ``007`` unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.csv_cells import LONG, NOT_PLAIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_DEFAULTS: Final = {"header": "true", "inferSchema": "true"}
_SUFFIXED: Final = "[dDfF]$"
"""Matches numbers with a type suffix of Java. Spark reads 12F as the number 12.0."""


def read_csv(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return a CSV file as a DataFrame. ``options`` are options of Spark's format ``csv``.

    Types are inferred, unless the option ``inferSchema`` is false. A column of numbers remains text
    if a cell is not written as a plain number or would be rounded (SEM E11), because such a column
    contains identifiers. The search for such cells needs one more Spark job.
    """
    csv_options = _DEFAULTS | {_known_spelling(option): text for option, text in options.items()}
    inferred = spark.read.format("csv").options(**csv_options).load(path)
    if csv_options["inferSchema"].lower() != "true":
        return inferred
    texts = spark.read.format("csv").options(**csv_options | {"inferSchema": "false"}).load(path)
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
    return spark.read.format("csv").options(**csv_options).schema(schema).load(path)


def _known_spelling(option: str) -> str:
    """Return the spelling of an option in ``_DEFAULTS``, so that a given option replaces a default
    as Spark would, which ignores case."""
    return next((name for name in _DEFAULTS if name.lower() == option.lower()), option)


def _identifier_columns(inferred: DataFrame, texts: DataFrame) -> set[str]:
    """Return the names of number columns with a cell whose text would change if it were read as a
    number. ``texts`` has the cells as they are written."""
    from pyspark.sql import functions
    from pyspark.sql.types import NumericType

    number_types = {
        column.name: column.dataType
        for column in inferred.schema
        if isinstance(column.dataType, NumericType)
    }
    if not number_types:
        return set()
    row = texts.agg(
        *[functions.max(_changes(texts, name, kind)) for name, kind in number_types.items()]
    ).first()
    assert row is not None, "an aggregate without groups has one row"
    return {name for name, changes in zip(number_types, row, strict=True) if changes}


def _changes(texts: DataFrame, name: str, kind: DataType) -> Column:
    """Return a condition: the cell of column ``name`` changes when it is read as a number of type
    ``kind``."""
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
