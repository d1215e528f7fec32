"""Errors that tasks raise keep their verdict on the driver; words of an event decide nothing."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock_core.vocabulary.errors import (
    InvalidEvent,
    NoSuchStage,
    PenstockError,
    SessionClosed,
    error_classes,
)
from penstock_spark.errors.error_marks import driver_secret, marking
from penstock_spark.pipelines.failures import FailureCause, cause_of
from penstock_spark.reading.poison import is_of_realm

pytestmark = pytest.mark.slow


def test_each_class_of_errors_raised_in_a_task_keeps_its_verdict(spark: SparkSession) -> None:
    secret = driver_secret()

    def report_errors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the text that a task reports to the JVM, for an error of each class."""
        from pyspark.util import handle_worker_exception

        from penstock_spark.errors.errors import converts_errors

        class Reader:
            options: ClassVar = {"errorsecret": secret}

            def read(self, kind: type[PenstockError]) -> None:
                raise kind("the reason")

        reader = converts_errors(Reader)()
        codes, texts = [], []
        for batch in batches:
            for code in batch.column("code").to_pylist():
                stream = io.BytesIO()
                try:
                    reader.read(error_classes()[code])
                except PenstockError as error:
                    handle_worker_exception(error, stream)
                codes.append(code)
                texts.append(stream.getvalue()[8:].decode())
        yield pa.RecordBatch.from_pydict({"code": codes, "text": texts})

    codes = spark.createDataFrame([(code,) for code in error_classes()], "code string")
    told_by_tasks = (
        codes.coalesce(1).mapInArrow(report_errors, "code string, text string").collect()
    )

    assert len(told_by_tasks) == len(error_classes())
    for code, text in told_by_tasks:
        kind = error_classes()[code]
        error = PySparkRuntimeError(f"An exception was thrown from the Python worker:\n{text}")
        assert cause_of(error).text == f"the reason [{code}]"
        assert cause_of(error).may_pass is (kind.retryable or kind is SessionClosed)
        assert is_of_realm(error) is not kind.blames_input


@pytest.mark.parametrize("kind", [NoSuchStage, SessionClosed, InvalidEvent])
def test_the_error_of_a_task_that_fails_has_its_verdict_in_the_driver(
    spark: SparkSession, kind: type[PenstockError]
) -> None:
    secret = driver_secret()

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking(secret):
            raise kind("the reason")
        yield from batches

    with pytest.raises(Exception, match="the reason") as raised:
        spark.range(1).coalesce(1).mapInArrow(fail, "id bigint").collect()

    assert cause_of(raised.value) == FailureCause(
        f"the reason [{kind.code}]", kind is not InvalidEvent
    )
    assert is_of_realm(raised.value) is (kind is not InvalidEvent)


def test_a_killed_process_is_known_where_another_thread_of_spark_waits_for_it(
    spark: SparkSession,
) -> None:
    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(1)
        yield from batches

    with pytest.raises(Exception, match="Exception thrown in awaitResult") as raised:
        spark.range(1).coalesce(1).mapInArrow(die, "id bigint").toArrow()

    cause = cause_of(raised.value)
    assert (cause.text[:33], cause.may_pass) == ("Python worker exited unexpectedly", True)
    assert is_of_realm(raised.value)
