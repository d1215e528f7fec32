"""``penstock schedule``, and publishing for later."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.client.sync.sync import Channel, Queue
from penstock_server.cli.shared import parsers

if TYPE_CHECKING:
    from tests.commands import Run

LATER = "2100-05-04T12:00:00"
AT = datetime(2100, 5, 4, hour=12, tzinfo=UTC)


@pytest.mark.spec("X4")
def test_an_event_may_be_published_later(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command("publish", "orders", "later", "--deliver-at", LATER, "--tag", "t")
    (waiting,) = orders.scheduled.list()

    assert printed.stdout == ("event scheduled on orders for 2100-05-04 12:00:00.000Z, number 0\n")
    assert (waiting.deliver_at, waiting.event.tag) == (AT, "t")
    assert orders.info().events == 5


@pytest.mark.parametrize(
    ("wait", "seconds"), [("+90", 90.0), ("+1.5", 1.5), ("+0", 0.0), ("+5m", 300.0), ("+2h", 7_200)]
)
def test_a_wait_counts_from_now(wait: str, seconds: float) -> None:
    before = datetime.now(UTC)
    delivery_time = parsers.delivery(wait)
    after = datetime.now(UTC)

    assert before <= delivery_time - timedelta(seconds=seconds) <= after


@pytest.mark.spec("X4")
def test_scheduled_events_are_listed(penstock_command: Run, work: Queue) -> None:
    penstock_command("queue", "push", "work", "later", "--deliver-at", LATER, "-p", "minutes=7")

    header, row = penstock_command("schedule", "list", "work").stdout.splitlines()
    (listed,) = json.loads(penstock_command("schedule", "list", "work", "--format", "json").stdout)

    assert header.split() == ["number", "deliver_at", "tag", "data", "properties"]
    assert row.split() == ["0", "2100-05-04", "12:00:00.000Z", "later", '{"minutes":7}']
    assert (listed["number"], listed["deliver_at"]) == (0, "2100-05-04T12:00:00Z")
    assert (listed["data"], listed["properties"]) == ("later", {"minutes": 7})


def test_an_empty_list_shows_how_to_schedule(penstock_command: Run, orders: Channel) -> None:
    listed = penstock_command("schedule", "list", "orders").stdout

    assert listed.startswith(
        "no events are scheduled on orders; schedule one with: penstock publish --deliver-at TIME"
    )


@pytest.mark.spec("X4")
def test_cancelled_events_are_never_published(penstock_command: Run, orders: Channel) -> None:
    penstock_command("publish", "orders", "later", "--deliver-at", LATER)

    cancelled = penstock_command("schedule", "cancel", "orders", "0", "--yes")
    again = penstock_command("schedule", "cancel", "orders", "0", "--yes")

    assert cancelled.stdout == "event 0 is no longer scheduled on orders\n"
    assert orders.scheduled.list() == []
    assert (again.exit_code, again.stdout) == (1, "")
    assert "number 0 is not scheduled on orders" in again.stderr
    assert again.stderr.endswith("[illegal-state]\n")


def test_events_of_a_file_may_wait(penstock_command: Run, orders: Channel, tmp_path: Path) -> None:
    file = tmp_path / "later.ndjson"
    file.write_text(f'{{"data": "a", "deliver_at": "{LATER}"}}\n' * 2)

    printed = penstock_command("publish", "orders", "--file", str(file))

    assert printed.stdout.startswith("2 events scheduled on orders, numbers 0 .. 1, in ")
    assert [waiting.deliver_at for waiting in orders.scheduled.list()] == [AT, AT]


def test_a_column_of_times_lets_events_wait(
    penstock_command: Run, orders: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "later.parquet"
    parquet.write_table(pa.table({"n": [1], "deliver_at": [AT]}), file)

    printed = penstock_command("publish", "orders", "--file", str(file))

    assert printed.stdout.startswith("1 event scheduled on orders, numbers 0 .. 0, in ")


@pytest.mark.parametrize(
    "arguments", [["list", "nowhere"], ["cancel", "nowhere", "0"]], ids=lambda words: words[0]
)
def test_where_there_is_no_store_nothing_waits(penstock_command: Run, arguments: list[str]) -> None:
    refused = penstock_command("schedule", *arguments)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no channel or queue nowhere exists" in refused.stderr
    assert refused.stderr.endswith("[name-does-not-exist]\n")


@pytest.mark.parametrize("time", ["tomorrow", "+", "+soon", "+5w", "+99999999999999", "12:00"])
def test_a_time_that_is_none_is_wrong_usage(
    penstock_command: Run, orders: Channel, time: str
) -> None:
    refused = penstock_command("publish", "orders", "x", "--deliver-at", time)

    assert refused.exit_code == 2
    assert f"{time!r} is neither a time such as" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("text", ['"soon"', "true", "1e300", "{}"])
def test_a_time_in_a_file_that_is_none_is_refused(
    penstock_command: Run, orders: Channel, text: str
) -> None:
    line = f'{{"data": "x", "deliver_at": {text}}}'

    refused = penstock_command("publish", "orders", "--file", "-", stdin=line)

    assert refused.exit_code == 1
    assert "line 1: 'deliver_at' is " in refused.stderr
    assert orders.scheduled.list() == []
