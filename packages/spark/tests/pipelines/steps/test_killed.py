"""``penstock pipeline run`` with the steps replay and redrive, killed again and again."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from packages.spark.tests.pipelines.steps.programs import start_pipeline
from packages.spark.tests.redriving.graves import buried
from packages.spark.tests.replaying.histories import events
from penstock.client.sync.sync import Channel, Session
from penstock.tables import Table
from penstock_core.columns.events.event import Event

pytestmark = [pytest.mark.slow, pytest.mark.process]

TIMEOUT_S = 120

REPLAY = """
name = "again"

[[step]]
name = "again"
kind = "replay"
archive = { a = "lake/a", b = "lake/b" }
channel = "again"
speed = 20
"""

REDRIVE = """
name = "back"

[[step]]
name = "back"
kind = "redrive"
from = "dead"
record = "record"
max_events = 5
"""


def killed_when(url: str, file: Path, channel: Channel, count: int) -> None:
    """Run a pipeline until a channel has so many events, and kill it."""
    process = start_pipeline(url, file)
    try:
        with channel.subscribe(start="earliest", timeout=TIMEOUT_S) as subscription:
            assert len(list(islice(subscription, count))) == count
    finally:
        process.kill()
        process.wait()


def test_a_replay_that_is_killed_publishes_each_event_once(
    client: Session, url: str, tmp_path: Path
) -> None:
    chance = random.Random(15)
    keys = []
    for name in "ab":
        times = sorted(chance.sample(range(60_000_000), 300))
        keys += [(when, name, event) for event, when in enumerate(times, 1)]
        table = events(range(1, 301), times)
        Table.open(str(tmp_path / "lake" / name), "delta").append(table, "test", 1)
    again = client.channels.create("again", type="persistent")
    file = tmp_path / "again.toml"
    file.write_text(REPLAY)
    for count in sorted(chance.sample(range(1, 500), 3)):
        killed_when(url, file, again, count=count)
    assert start_pipeline(url, file).wait(TIMEOUT_S) == 0

    assert [event.data for event in again.browse()] == [b"e%d" % key[2] for key in sorted(keys)]


def test_a_redrive_that_is_killed_brings_each_event_back_once(
    client: Session, url: str, tmp_path: Path
) -> None:
    chance = random.Random(16)
    buried(client, [Event(b"%d" % n) for n in range(400)])
    orders = client.channels.get("orders")
    file = tmp_path / "back.toml"
    file.write_text(REDRIVE)
    for count in sorted(chance.sample(range(1, 300), 3)):
        killed_when(url, file, orders, count=1 + count)
    assert start_pipeline(url, file, "--once").wait(TIMEOUT_S) == 0

    wanted = [b"stays", *(b"%d" % n for n in range(400))]
    assert [event.data for event in orders.browse()] == wanted
    records = [event.properties["dead_id"] for event in client.channels.get("record").browse()]
    assert records == list(range(400))
    assert client.channels.get("dead").info().events == 0
