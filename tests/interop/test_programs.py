"""The outcome of a suite, parsed from its output."""

from __future__ import annotations

import pytest

from tests.interop.programs import outcome, run_java


def test_a_suite_that_passes_is_counted() -> None:
    result = outcome("CLASS 3 x.Y 10 ms\nRAN 3 FAILED 0 IGNORED 0\n")

    assert str(result) == "3 of 3 pass"


def test_what_has_failed_is_named_with_its_reason() -> None:
    result = outcome("FAILED x.Y.z: it was 2\nRAN 3 FAILED 1 IGNORED 1\n")

    assert str(result) == "2 of 3 pass\n  x.Y.z: it was 2"
    assert result.ignored == 1


def test_a_suite_that_dies_has_not_passed() -> None:
    with pytest.raises(AssertionError, match="not come to its end"):
        outcome("CLASS 3 x.Y 10 ms\n")


def test_a_failure_without_a_name_is_not_lost() -> None:
    with pytest.raises(AssertionError, match="these are named"):
        outcome("RAN 3 FAILED 1 IGNORED 0\n")


def test_a_suite_whose_test_did_not_ask_for_java_fails_instead_of_being_left_out() -> None:
    with pytest.raises(AssertionError, match="uses the fixture java"):
        run_java("qpid", [], {})
