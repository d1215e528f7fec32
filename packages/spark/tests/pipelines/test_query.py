"""The query step before Spark: what it reads, what its function takes, how Spark's words read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines import Pipeline, Query, Source
from penstock_spark.pipelines.steps.query import (
    describe_sql_error,
    names_in_sql,
    parameters_in_source,
)

MODULE = """
import nothing_of_the_kind

def late(flights, *, airlines, spark):
    return flights
"""


def pipeline(folder: Path, python: Any) -> Pipeline:
    return Pipeline(
        name="p",
        sources=(Source(name="flights", channel="flights"), Source(name="airlines", table="a.csv")),
        steps=(Query(name="late", python=python, channel="late"),),
        folder=folder,
    )


def test_names_in_a_query_are_found_outside_of_texts_and_comments() -> None:
    sql = """SELECT 'planes', "trains" -- boats
    /* cars
    */ FROM Flights f JOIN `air lines` USING (carrier)"""

    assert names_in_sql(sql, ["planes", "trains", "boats", "cars", "flights", "air lines"]) == [
        "flights",
        "air lines",
    ]


def test_a_function_is_read_without_being_run(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(MODULE)

    assert parameters_in_source("steps.py:late", tmp_path) == ["flights", "airlines", "spark"]
    made = pipeline(tmp_path, "steps:late")
    assert made.reads(made.step("late")) == ("channel flights", "table a.csv")


def test_a_function_of_a_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("def late(flights): ...")

    assert parameters_in_source("own:late", tmp_path) == ["flights"]
    assert parameters_in_source("textwrap:dedent", tmp_path) == ["text"]


def test_a_function_in_python_tells_its_parameters(tmp_path: Path) -> None:
    def late(flights: Any, spark: Any) -> Any:
        return flights

    made = pipeline(tmp_path, late)
    assert made.reads(made.step("late")) == ("channel flights",)


@pytest.mark.parametrize(
    ("source", "called", "message"),
    [
        ("def late(flights): ...", "steps:lat", "steps has no function lat: did you mean late"),
        ("x = 1", "steps:late", "has no function late: it defines none"),
        ("def late(:", "steps:late", "steps.py is not Python: .*line 1"),
        ("def late(fligths): ...", "steps:late", "parameter fligths, .*did you mean flights"),
        ("def late(airlines): ...", "steps:late", "python reads no stream, only airlines"),
        ("def late(): ...", "steps:late", "python reads no"),
    ],
)
def test_a_function_that_cannot_be_is_told(
    tmp_path: Path, source: str, called: str, message: str
) -> None:
    (tmp_path / "steps.py").write_text(source)

    with pytest.raises(InvalidArgument, match=message):
        pipeline(tmp_path, called)


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="python is 7; it must be a function or its name"):
        pipeline(tmp_path, 7)


def test_an_error_of_a_query_is_one_line_with_the_line_it_means() -> None:
    sql = "SELECT n,\n  delayx\nFROM flights"
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `delayx` cannot be resolved. "
        "SQLSTATE: 42703; line 2 pos 2;\n'Project [n#1, 'delayx]\n+- SubqueryAlias flights\n"
    )

    assert describe_sql_error(text, sql) == (
        "A column with name `delayx` cannot be resolved; line 2: delayx"
    )
    assert describe_sql_error("[X] no place.\nmore", sql) == "no place. more"


def test_a_function_that_is_loaded_travels_with_what_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own_travels.py").write_text("def late(flights):\n    return flights\n")
    query = Query(name="late", python="own_travels:late", channel="late")

    function = query.function(tmp_path)

    assert function("rows") == "rows"
    assert "own_travels" in cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
