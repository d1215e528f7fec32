"""QoS 2 over a kill of the server, here and with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.mqtt_kills import MESSAGES, STATES, kills, missing

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.spec("M7")]


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    report = kills("penstock", tmp_path)

    assert (report.lost.total(), report.doubled.total(), report.has_session) == (0, 0, True)


@pytest.mark.peer
@pytest.mark.skipif(bool(missing("mosquitto")), reason=missing("mosquitto"))
def test_the_same_kill_shows_what_another_server_keeps(tmp_path: Path) -> None:
    """So the kill is one that can lose something."""
    report = kills("mosquitto", tmp_path)

    assert [report.lost[state] for state in STATES[:3]] == [MESSAGES] * 3
