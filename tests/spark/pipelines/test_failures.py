"""Why a step failed: one line out of pages, and whether trying again may help."""

from __future__ import annotations

import pytest

from penstock.core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    InvalidEvent,
    NoSuchStage,
    SessionClosed,
)
from penstock.spark.pipelines.failures import FailureCause, cause_of

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

OURS = """[PYTHON_DATA_SOURCE_ERROR] Failed to commit: Traceback (most recent call last):
  File "/opt/penstock/spark/writing.py", line 9, in commit
    publish()
penstock.core.vocabulary.errors.NoSuchStage: the realm has lost rows of this write
and more
"""

FOREACH = f"""[FOREACH_BATCH_USER_FUNCTION_ERROR] Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/pyspark/errors.py", line 9, in deco
    raise converted
pyspark.errors.exceptions.captured.ArithmeticException: {JAVA}
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            STREAM + JAVA,
            FailureCause("Division by zero. Use `try_divide`. [DIVIDE_BY_ZERO]", False),
        ),
        (FOREACH, FailureCause("Division by zero. Use `try_divide`. [DIVIDE_BY_ZERO]", False)),
        (
            STREAM + PYTHON,
            FailureCause(
                "ZeroDivisionError: integer division or modulo by zero "
                "(steps.py, line 4, in inverse)",
                False,
            ),
        ),
        (
            STREAM + OURS,
            FailureCause("the realm has lost rows of this write [no-such-stage]", True),
        ),
        (
            STREAM + "java.io.OptionalDataException",
            FailureCause("java.io.OptionalDataException", True),
        ),
        (
            STREAM + "Python worker failed to connect back.\n\tat org.apache.spark.errors",
            FailureCause("Python worker failed to connect back.", True),
        ),
        (
            "Timed out while waiting for the Python worker to connect back",
            FailureCause("Timed out while waiting for the Python worker to connect back", True),
        ),
        ("Python worker exited unexpectedly (crashed)\nmore", None),
        ("", FailureCause("RuntimeError", False)),
    ],
)
def test_a_cause_is_one_line(text: str, cause: FailureCause | None) -> None:
    found = cause_of(RuntimeError(text))

    assert found == (cause or FailureCause("Python worker exited unexpectedly (crashed)", True))


@pytest.mark.parametrize("kind", [CannotConnect, ConnectionLost, SessionClosed, NoSuchStage])
def test_what_a_restart_of_the_realm_breaks_may_pass(kind: type[Exception]) -> None:
    assert cause_of(kind("gone")).may_pass


def test_what_is_wrong_with_the_rows_stays_wrong() -> None:
    assert cause_of(InvalidEvent("no")) == FailureCause("no [invalid-event]", False)
