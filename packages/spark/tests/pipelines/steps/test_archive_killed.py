"""``penstock pipeline run`` with the step archive, killed again and again with its Spark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from packages.spark.tests.pipelines.steps.programs import start_pipeline
from penstock.client.sync.sync import Session
from penstock.tables import Table
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import NameDoesNotExist

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java"), pytest.mark.process]

TIMEOUT_S = 600
EVENTS = 120
"""Events of each channel."""
KILLS = 4

DEFINITION = """
name = "lake"
master = "local[2]"

[spark]
driver.memory = "1g"

[[source]]
name = "flights"
channel = "flights/*"
max_events = 30

[[step]]
name = "delta"
kind = "archive"
source = "flights"
table = "delta"
compact_every = 3

[[step]]
name = "parquet"
kind = "archive"
source = "flights"
table = "parquet"
format = "parquet"
compact_every = 3
"""


def tables_in(folder: Path) -> dict[str, Table]:
    tables = {}
    for place in ("delta", "parquet"):
        for channel in ("flights~2Fa", "flights~2Fb"):
            with suppress(NameDoesNotExist):
                tables[f"{place}/{channel}"] = Table.found(str(folder / place / channel))
    return tables


def stored_in(folder: Path) -> int:
    return sum(file.rows for table in tables_in(folder).values() for file in table.files())


def killed_when(url: str, file: Path, stored: int, later_s: float) -> None:
    """Run the pipeline until its tables have so many rows, and a little longer; then kill it and
    all that it has started."""
    process = start_pipeline(url, file, with_group=True)
    try:
        for _ in range(TIMEOUT_S * 10):
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it has ended with {process.wait(0.1)}")
            if stored_in(file.parent) >= stored:
                break
        with suppress(subprocess.TimeoutExpired):
            process.wait(later_s)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_an_archive_step_that_is_killed_keeps_each_event_once(
    client: Session, url: str, tmp_path: Path
) -> None:
    chance = random.Random(17)
    for name in ("flights/a", "flights/b"):
        channel = client.channels.create(name, type="persistent")
        channel.publish_many([Event(properties={"n": n}) for n in range(EVENTS)])
    file = tmp_path / "lake.toml"
    file.write_text(DEFINITION)
    for stored in sorted(chance.sample(range(1, 3 * EVENTS), KILLS)):
        killed_when(url, file, stored, later_s=chance.random())
    before = stored_in(tmp_path)
    assert start_pipeline(url, file, "--once", with_group=True).wait(TIMEOUT_S) == 0

    tables = tables_in(tmp_path)
    assert 0 < before < 4 * EVENTS
    assert len(tables) == 4
    for name, table in tables.items():
        rows = table.to_arrow(["event_id", "n"])
        twice = [key for key, count in Counter(rows["event_id"].to_pylist()).items() if count > 1]
        assert (name, twice) == (name, [])
        assert sorted(zip(*rows.to_pydict().values(), strict=True)) == [
            (n, n) for n in range(EVENTS)
        ]
        assert table.dataset().count_rows() == EVENTS
