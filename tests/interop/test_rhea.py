"""An unmodified rhea, the AMQP 1.0 client of Node.js."""

from __future__ import annotations

import pytest

from tests.interop.programs import Tell, run_node

TESTS = 19
KNOWN = {"a_quiet_connection_is_kept_alive": "an idle time-out of seconds is too short for it"}
"""What may fail, each with why."""


@pytest.mark.slow
@pytest.mark.process
def test_rhea(amqp: str, tell: Tell) -> None:
    found = run_node("rhea", "suite.mjs", amqp)

    tell("rhea", found)
    assert found.ran == TESTS
    assert found.failed.keys() <= KNOWN.keys()
    assert found.ignored == 0
