"""Whatever a file says: applied once, a realm is as it says, and can be written as a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from packages.tools.tests.topology.converging import changes, check_convergence
from penstock_tools.topology import Topology
from tests.thorough import examples


@pytest.mark.slow
@given(files=changes())
@hypothesis_settings(max_examples=examples(20), deadline=None)
def test_a_realm_is_as_the_file_says_and_a_second_time_there_is_nothing_to_do(
    files: tuple[Topology, Topology],
) -> None:
    check_convergence(files)
