"""A short, fixed part of ``make faults``: real processes, most of the faults, no losses."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.faults.processes import Clients
from tests.faults.report import as_json, table
from tests.faults.run import LoopSettings, play

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.alone]

CAST = (
    ("single", "pipelined", "careless", "short", "popped"),
    ("named", "transaction", "joint", "grown", "put", "pushed", "amqp", "mqtt"),
    ("exclusive.1", "shared.1", "serial.1", "reader.1", "subscription.1", "mqtt_qos1.1"),
    ("priority.1", "shared_queued.1", "shared.2", "serial.2", "reader.2", "pop.1", "mqtt_qos2.1"),
)
KINDS = ("kill", "term", "stop", "full", "clock", "stall", "half", "cut", "storm", "clients")


@pytest.mark.spec("X1", "X3", "E4", "E6", "D4", "D13", "T7", "Q2", "S1", "M7")
def test_real_faults_lose_no_acknowledged_event_and_repeat_none(tmp_path: Path) -> None:
    loop = play(LoopSettings(4_711, 0.2, tmp_path, cases=2, kinds=KINDS, cast=CAST, is_whole=True))

    report = table([loop])
    assert loop.is_well, report
    assert sum(loop.faults.values()) >= 3, report
    assert min(row.acknowledged for row in loop.publishers) > 0, report
    assert min(row.received for row in loop.consumers) > 0, report
    assert sum(row.lost for row in loop.publishers) == 0
    assert "everything held" in report
    assert b'"violations": []' in as_json([loop])


def test_clients_that_get_sigterm_while_they_start_end_in_order(tmp_path: Path) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("log")
        clients = Clients(realm.listen(), tmp_path, ("single",))
        clients.terminate()

        assert clients.wait() == ""
