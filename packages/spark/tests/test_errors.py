"""Errors have both Penstock's and Spark's types; options for waiting and for ``value``."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)
from pyspark.sql.types import BinaryType, DoubleType, StringType, StructType

import penstock
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    InvalidEvent,
    NameDoesNotExist,
    Unavailable,
)
from penstock_spark.columns.rows import as_table, check_writable
from penstock_spark.connections import disconnect
from penstock_spark.errors.errors import as_spark_error, convert_errors, converts_errors
from penstock_spark.options import SinkOptions, Where, sink_options, source_options
from penstock_spark.pipelines.sources import Source
from penstock_spark.session.starts import parse_positions
from penstock_spark.source import PenstockSource

URL = "penstock://localhost:1"


def test_a_process_of_spark_hides_the_traceback_of_an_expected_error_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @converts_errors
    class Odd:
        def read(self, error: Exception) -> None:
            raise error

    hidden = []
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")  # as in such a process
    for error in (InvalidArgument("no"), ZeroDivisionError(), NameDoesNotExist("x")):
        with pytest.raises(type(error)):
            Odd().read(error)
        hidden.append("SPARK_HIDE_TRACEBACK" in os.environ)
    monkeypatch.delenv("SPARK_BUFFER_SIZE")
    with pytest.raises(InvalidArgument):
        Odd().read(InvalidArgument("no"))

    assert [*hidden, "SPARK_HIDE_TRACEBACK" in os.environ] == [True, False, True, False]


def source(**options: str) -> PenstockSource:
    return PenstockSource({"url": URL, "channel": "orders", **options})


def test_what_the_format_refuses_is_caught_as_spark_errors_are() -> None:
    with pytest.raises(PySparkValueError, match="unknown option") as caught:
        source(bogus="1").schema()
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.getCondition() == "PENSTOCK_INVALID_ARGUMENT"
    assert "did you mean" in caught.value.getMessage() or "there are" in caught.value.getMessage()
    assert caught.value.getSqlState() is None

    with pytest.raises(PySparkRuntimeError) as lost:
        source().schema()
    assert isinstance(lost.value, penstock.CannotConnect)


def test_each_error_keeps_its_class_its_text_and_its_cause() -> None:
    with penstock.Realm() as realm:
        reading = PenstockSource({"url": realm.listen(), "channel": "none"})
        with pytest.raises(AnalysisException, match="has no channel 'none'") as caught:
            reading.schema()
        disconnect()
    assert isinstance(caught.value, NameDoesNotExist)
    assert as_spark_error(caught.value) is caught.value

    with pytest.raises(Unavailable, match="later") as raised, convert_errors():
        raise Unavailable("later") from ValueError("why")
    assert isinstance(raised.value, PySparkException)
    assert repr(raised.value.__cause__) == "ValueError('why')"
    assert raised.value.retryable


def test_a_time_without_a_zone_is_refused_wherever_it_is_said() -> None:
    for text in ("2013-01-31T09:30:00", '{"orders": "2013-01-31T09:30:00"}'):
        for side in ("starting", "ending"):
            all_options = {"url": URL, "channel": "orders", f"{side}Timestamp": text}
            with pytest.raises(
                InvalidArgument, match=r"without a time zone.*2013-01-31T09:30:00Z for"
            ):
                source_options(all_options)
    with pytest.raises(InvalidArgument, match="starting is 2013-01-31T09:30:00, a time without"):
        Source(name="a", channel="a", starting="2013-01-31T09:30:00").format_options()
    zoned = "2013-01-31T09+01:00"
    options = source_options({"url": URL, "channel": "a", "startingTimestamp": zoned})
    assert str(options.starting.position_of("a")) == "2013-01-31 09:00:00+01:00"
    assert parse_positions("starting", {}, options.choice).otherwise is None


def test_how_long_to_wait_for_a_realm_is_an_option_of_reads_and_writes() -> None:
    all_options = {"url": URL, "channel": "a", "reconnectTimeout": "2.5"}

    reading, writing = (
        source_options(all_options),
        sink_options({**all_options, "realmRestarts": "0"}),
    )

    assert reading.realm.reconnect_s == reading.where_is("a").realm.reconnect_s == 2.5
    assert (writing.where.realm.reconnect_s, writing.realm_restarts) == (2.5, 0)
    assert source_options({"url": URL, "channel": "a"}).realm.reconnect_s == 60
    assert sink_options({"url": URL, "channel": "a"}).realm_restarts == 5
    for text in ("-1", "soon", "nan", "inf"):
        with pytest.raises(InvalidArgument, match=f"reconnectTimeout is '{text}'; a number of"):
            source_options({**all_options, "reconnectTimeout": text})
    with pytest.raises(InvalidArgument, match="realmRestarts is 'x'; a whole number"):
        sink_options({"url": URL, "channel": "a", "realmRestarts": "x"})


def kafkas(value: BinaryType | StringType | DoubleType) -> StructType:
    return StructType().add("key", StringType()).add("value", value)


@pytest.mark.parametrize("kind", [BinaryType(), StringType()])
def test_rows_for_kafka_have_to_say_what_value_is(kind: BinaryType | StringType) -> None:
    where = Where(URL, "out")
    with pytest.raises(InvalidArgument, match=r'set \.option\("value", "data"\) to publish value'):
        check_writable(kafkas(kind), SinkOptions(where), overwrite=False)

    for setting, name in (("data", "data"), ("property", "value")):
        options = sink_options({"url": URL, "channel": "out", "value": setting})
        check_writable(kafkas(kind), options, overwrite=False)
        table = as_table(pa.record_batch({"key": ["k"], "value": ["v"]}), options)
        assert sorted(table.column_names) == sorted(["key", name])
        assert table.column("key").to_pylist() == ["k"]
    with pytest.raises(InvalidArgument, match="value is 'message'; it must be data or property"):
        sink_options({"url": URL, "channel": "out", "value": "message"})


def test_a_value_among_other_columns_is_a_property_as_any() -> None:
    where = Where(URL, "out")
    check_writable(kafkas(DoubleType()), SinkOptions(where), overwrite=False)
    readings = StructType().add("sensor", StringType()).add("value", StringType())
    check_writable(readings, SinkOptions(where), overwrite=False)

    says = SinkOptions(where, value="data")
    with pytest.raises(InvalidArgument, match="the column value is double; a payload must be"):
        check_writable(kafkas(DoubleType()), says, overwrite=False)
    schema = kafkas(StringType()).add("data", BinaryType())
    with pytest.raises(InvalidArgument, match="the rows also have a column data"):
        check_writable(schema, says, overwrite=False)
    with pytest.raises(InvalidArgument, match="the rows have no column value"):
        check_writable(StructType().add("n", StringType()), says, overwrite=False)


def test_a_column_that_differs_from_one_of_events_in_case_only_is_refused() -> None:
    where = Where(URL, "out")
    for name in ("Tag", "Data", "Event_ID", "PRIORITY"):
        schema = StructType().add("n", StringType()).add(name, StringType())
        with pytest.raises(
            InvalidEvent, match=f"the column {name} differs .*name it {name.lower()}"
        ):
            check_writable(schema, SinkOptions(where), overwrite=False)
    routed = StructType().add("n", StringType()).add("TAG", StringType())
    check_writable(routed, SinkOptions(where, channel_column="TAG"), overwrite=False)
