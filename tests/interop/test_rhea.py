"""An unmodified rhea, the AMQP 1.0 client of Node.js."""

from __future__ import annotations

import pytest

from tests.interop.programs import Tell, Whole, run_node

TESTS = 21


@pytest.mark.slow
@pytest.mark.process
def test_rhea(amqp: str, whole: Whole, tell: Tell) -> None:
    found = whole(lambda names: run_node("rhea", "suite.mjs", amqp, *names), [])

    tell("rhea", found)
    assert str(found) == f"{TESTS} of {TESTS} pass"
    assert found.ignored == 0
