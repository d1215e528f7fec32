"""CSV files as tables of a pipeline: identifiers are not read as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock_spark.pipelines.csv_tables import read_csv

pytestmark = pytest.mark.slow

IDENTIFIERS = {
    "zero": ("0815", "12"),
    "plus": ("+4912345", "12"),
    "suffix": ("12F", "7"),
    "digits": ("9007199254740993", "1.5"),
    "large": ("1e400", "1"),
    "a.b`c": ("007", "8"),
}
NUMBERS = {
    "whole": ("1", "-20"),
    "fraction": ("0.5", "-1e3"),
    "nothing": ("0", ""),
    "long": ("9223372036854775807", "1"),
}


def write(path: Path, columns: dict[str, tuple[str, str]]) -> str:
    rows = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.mark.spec("E11")
def test_columns_of_identifiers_are_text_and_numbers_are_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "codes.csv", {**IDENTIFIERS, **NUMBERS, "word": ("a", "0b")})

    frame = read_csv(spark, path, {})

    types = dict(frame.dtypes)
    assert {name: types[name] for name in IDENTIFIERS} == dict.fromkeys(IDENTIFIERS, "string")
    assert {name: types[name] for name in NUMBERS} == {
        "whole": "int",
        "fraction": "double",
        "nothing": "int",
        "long": "bigint",
    }
    first, second = (row.asDict() for row in frame.collect())
    assert {name: (first[name], second[name]) for name in IDENTIFIERS} == IDENTIFIERS
    assert (first["whole"], second["fraction"], second["nothing"]) == (1, -1000.0, None)


@pytest.mark.spec("E11")
def test_options_decide_before_the_cells(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "codes.csv", {"code": ("0815", "12"), "n": ("1", "2")})

    as_text = read_csv(spark, path, {"INFERSCHEMA": "false"})
    unnamed = read_csv(spark, path, {"Header": "false"})

    assert dict(as_text.dtypes) == {"code": "string", "n": "string"}
    assert unnamed.columns == ["_c0", "_c1"]
    assert unnamed.count() == 3
