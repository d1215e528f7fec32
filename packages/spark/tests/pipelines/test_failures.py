"""Why a step failed: one line out of pages, and whether trying again may help."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import PySparkRuntimeError

from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    InvalidEvent,
    NoSuchStage,
    PenstockError,
    SessionClosed,
    error_classes,
)
from penstock_spark.errors.error_marks import driver_secret, mark
from penstock_spark.errors.errors import converts_errors
from penstock_spark.options import SinkOptions, Where
from penstock_spark.pipelines.failures import FailureCause, cause_of
from penstock_spark.reading.poison import is_of_realm, reason_of

STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "

JAVA = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: "
    "Lost task 0.0: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by "
    "zero. Use `try_divide`. SQLSTATE: 22012\n== SQL (line 1, position 8) ==\nSELECT n/0\n\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(Errors.scala:190)\n"
)

PYTHON = """[PYTHON_EXCEPTION] Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/pyspark/worker.py", line 12, in main
    process()
  File "flights/steps.py", line 4, in inverse
    return 1 // n
ZeroDivisionError: integer division or modulo by zero
"""

OURS = f"""[PYTHON_DATA_SOURCE_ERROR] Failed to commit: Traceback (most recent call last):
  File "/opt/penstock/spark/writing.py", line 9, in commit
    publish()
penstock_spark.errors.errors.NoSuchStage: [PENSTOCK_NO_SUCH_STAGE] the realm has lost rows of this
write {mark(NoSuchStage("the realm has lost rows of this write"), driver_secret())} and more """

FOREACH = f"""[FOREACH_BATCH_USER_FUNCTION_ERROR] Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/pyspark/errors.py", line 9, in deco
    raise converted
pyspark.errors.exceptions.captured.ArithmeticException: {JAVA}
"""


FRAMES = """\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
\tat java.base/java.lang.reflect.Method.invoke(Method.java:569)
\t... 24 more
"""
AWAITED = "org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
TO_ARROW = f"""An error occurred while calling o117.getResult.
: {AWAITED}{FRAMES}Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: \
Task 0 in stage 8.0 failed 1 times, most recent failure: Lost task 0.0 in stage 8.0 (TID 8) \
(localhost executor driver): %s
{FRAMES}
Driver stacktrace:
{FRAMES}"""
"""Return the error that collecting rows as Arrow raises in the driver."""
IN_BATCH = f"""An exception was raised by the Python Proxy. Return Message: Traceback (most recent \
call last):
  File "/opt/lib/python3.11/site-packages/pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
py4j.protocol.Py4JJavaError: {TO_ARROW}"""
"""Its text where a function that stores a micro-batch collects the rows."""
LOST = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider"
STATE = (
    "[STATE_STORE_COMMIT_VALIDATION_FAILED] State store commit validation failed for batch 2.\n"
    "Expected 1 commits but got 0. SQLSTATE: XXKST"
)


def passed_on(*texts: str) -> PySparkRuntimeError:
    """An error as PySpark converts it from Java: each text is of the cause of the one before."""
    error, *causes = [PySparkRuntimeError(text) for text in texts]
    above = error
    for cause in causes:
        above._cause = cause  # type: ignore[attr-defined]  # as PySpark does
        above = cause
    return error


@pytest.mark.parametrize("text", [TO_ARROW, IN_BATCH])
def test_the_cause_in_another_thread_of_spark_is_told_and_judged(text: str) -> None:
    lost = PySparkRuntimeError(text % LOST)

    assert cause_of(lost) == FailureCause(
        "Python worker exited unexpectedly (crashed). Consider", may_pass=True
    )
    assert is_of_realm(lost)
    assert reason_of(lost) == "Python worker exited unexpectedly (crashed). Consider"
    assert not cause_of(PySparkRuntimeError(text % "java.io.IOException: no such file")).may_pass
    value = "[CAST_INVALID_INPUT] The value 'x' cannot be cast"
    assert cause_of(PySparkRuntimeError(text % value)).is_of_value


@pytest.mark.parametrize(
    "outer",
    [
        ("Exception thrown in awaitResult: \n=== Streaming Query ===\nIdentifier: x", AWAITED),
        ("Writing job failed.\n=== Streaming Query ===",),
        ("null\n=== Streaming Query ===", "java.lang.reflect.InvocationTargetException"),
        ("",),
    ],
)
def test_the_cause_is_told_of_an_exception_that_only_passes_it_on(outer: tuple[str, ...]) -> None:
    cause = cause_of(passed_on(*outer, STATE))

    assert cause.text == (
        "State store commit validation failed for batch 2. [STATE_STORE_COMMIT_VALIDATION_FAILED]; "
        "the function that writes the step's micro-batches must compute all rows of each "
        "micro-batch, even if the micro-batch is already stored"
    )
    assert not cause.may_pass
    assert reason_of(passed_on(*outer, STATE)).startswith("[STATE_STORE_COMMIT_VALIDATION_FAILED]")
    assert cause_of(passed_on(*outer, LOST)).may_pass
    assert cause_of(passed_on(*outer, OURS)).may_pass
    assert is_of_realm(passed_on(*outer, OURS))
    assert cause_of(passed_on(*outer, "java.lang.NullPointerException")).text == (
        "java.lang.NullPointerException"
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            STREAM + JAVA,
            FailureCause(
                "Division by zero. Use `try_divide`. [DIVIDE_BY_ZERO]",
                may_pass=False,
                is_of_value=True,
            ),
        ),
        (
            FOREACH,
            FailureCause(
                "Division by zero. Use `try_divide`. [DIVIDE_BY_ZERO]",
                may_pass=False,
                is_of_value=True,
            ),
        ),
        (
            STREAM + PYTHON,
            FailureCause(
                "ZeroDivisionError: integer division or modulo by zero "
                "(steps.py, line 4, in inverse)",
                may_pass=False,
            ),
        ),
        (
            STREAM + OURS,
            FailureCause("the realm has lost rows of this write [no-such-stage]", may_pass=True),
        ),
        (
            STREAM + "java.io.OptionalDataException",
            FailureCause("java.io.OptionalDataException", may_pass=True),
        ),
        (
            STREAM + "Python worker failed to connect back.\n\tat org.apache.spark.errors",
            FailureCause("Python worker failed to connect back.", may_pass=True),
        ),
        (
            "Timed out while waiting for the Python worker to connect back",
            FailureCause(
                "Timed out while waiting for the Python worker to connect back", may_pass=True
            ),
        ),
        ("Python worker exited unexpectedly (crashed)\nmore", None),
        ("", FailureCause("PySparkRuntimeError", may_pass=False)),
    ],
)
def test_a_cause_is_one_line(text: str, cause: FailureCause | None) -> None:
    failure = cause_of(PySparkRuntimeError(text))

    assert failure == (
        cause or FailureCause("Python worker exited unexpectedly (crashed)", may_pass=True)
    )


def test_a_changed_aggregate_is_told_with_what_to_do() -> None:
    text = (
        f"{STREAM}[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match "
        "existing state value schema.\nPlease check number and type of fields. SQLSTATE: 42K06"
    )

    cause = cause_of(PySparkRuntimeError(text))

    assert "schema. [STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]; the checkpoint has" in cause.text
    assert "revert the change, or remove the step's folder" in cause.text


@pytest.mark.parametrize("kind", [CannotConnect, ConnectionLost, SessionClosed, NoSuchStage])
def test_what_a_restart_of_the_realm_breaks_may_pass(kind: type[Exception]) -> None:
    assert cause_of(kind("gone")).may_pass


def test_what_is_wrong_with_the_rows_stays_wrong() -> None:
    assert cause_of(InvalidEvent("no")) == FailureCause("no [invalid-event]", may_pass=False)


@pytest.mark.parametrize("kind", error_classes().values())
def test_each_class_of_errors_keeps_its_verdict_on_its_way_through_spark(
    kind: type[PenstockError],
) -> None:
    class Reader:
        def __init__(self) -> None:
            self._options = SinkOptions(Where("", ""), error_secret=driver_secret())

        def read(self) -> None:
            raise kind("the reason\nand more")

    with pytest.raises(PenstockError) as raised:
        converts_errors(Reader)().read()
    handed_on = STREAM + "".join(traceback.format_exception(raised.value))
    error = PySparkRuntimeError(handed_on)

    passes = kind.retryable or kind is SessionClosed
    assert cause_of(error) == FailureCause(f"the reason [{kind.code}]", passes)
    assert is_of_realm(error) is not kind.blames_input


def test_a_mark_in_the_value_of_an_event_is_not_believed() -> None:
    forged = mark(ConnectionLost("x"), "another secret")
    value = f"[CAST_INVALID_INPUT] The value '{forged}' of the type STRING cannot be cast"

    assert not cause_of(PySparkRuntimeError(value)).may_pass
    assert not is_of_realm(PySparkRuntimeError(value))
    for fake_mark in ("<penstock-error>", f"<penstock-error {'0' * 32} aaaa>"):
        assert not cause_of(PySparkRuntimeError(f"[CAST_INVALID_INPUT] {fake_mark}")).may_pass


LIES = (
    "request timed out",
    "Connection refused",
    "OutOfMemoryError",
    "Python worker exited unexpectedly (crashed)",
    "ExecutorLostFailure (executor 1 exited",
    "Exception thrown in awaitResult: \n\tat x\nCaused by: java.net.ConnectException: refused",
    "x\nTraceback (most recent call last):\nMemoryError: no",
    "java.net.ConnectException: Connection refused",
    "x: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: "
    "ExecutorLostFailure (executor 1 exited",
)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "text",
    [
        "[CAST_INVALID_INPUT] The value '{}' of the type STRING cannot be cast",
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "steps.py", line 4, in parse\n    raise ValueError(text)\nValueError: {}',
        "Job aborted due to stage failure: Task 0 in stage 8.0 failed 1 times, most recent "
        "failure: Lost task 0.0 in stage 8.0 (TID 8) (localhost executor driver): "
        "java.lang.IllegalArgumentException: {}",
    ],
)
def test_words_that_an_error_quotes_from_an_event_decide_nothing(text: str, lie: str) -> None:
    for handed_on in (text, STREAM + text):
        error = PySparkRuntimeError(handed_on.format(lie))
        assert not cause_of(error).may_pass
        assert not is_of_realm(error)


def test_a_process_of_spark_that_was_killed_is_known_by_where_spark_says_so() -> None:
    task = (
        "Job aborted due to stage failure: Task 0 in stage 8.0 failed 1 times, most recent "
        "failure: Lost task 0.0 in stage 8.0 (TID 8) (localhost executor driver): "
    )
    for text in (
        task + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
        task + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "An error occurred while calling o136.save.\n: org.apache.spark.SparkException: "
        + task
        + "java.io.OptionalDataException\n\tat java.base/x",
    ):
        assert cause_of(PySparkRuntimeError(STREAM + text)).may_pass
        assert is_of_realm(PySparkRuntimeError(STREAM + text))
