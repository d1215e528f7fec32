"""The simulation notices deliberate mistakes within a few seeds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structlog

from tests.sim.mutants import MUTANTS, noticed, row
from tests.sim.world import no_incidents

README = Path(__file__).with_name("README.md")
SOON = [name for name, mutant in MUTANTS.items() if mutant.is_soon]
LATER = [pytest.param(name, marks=pytest.mark.slow) for name in MUTANTS if name not in SOON]


@pytest.mark.slow
@pytest.mark.spec("K1", "L1", "T7", "X4", "S1")
@pytest.mark.parametrize("name", [*SOON, *LATER])
def test_a_mistake_is_noticed_within_a_few_lives(name: str) -> None:
    result = noticed(MUTANTS[name], MUTANTS[name].first)

    assert result is not None
    assert MUTANTS[name].complaint in result.complaint


def test_what_the_realm_survives_and_logs_with_an_incident_is_noticed() -> None:
    failure = LookupError("nobody foresaw this")

    with pytest.raises(AssertionError, match="nobody foresaw this"), no_incidents():
        structlog.get_logger().error("delivery.failed", incident="0a1b", exc_info=failure)


def test_the_readme_lists_every_mistake() -> None:
    listed = re.findall(r"^(\| [^|]+ \| `[^|]+` \| )\d+ \|$", README.read_text(), re.MULTILINE)

    assert listed == [row(mutant, None).removesuffix("nobody |") for mutant in MUTANTS.values()]
