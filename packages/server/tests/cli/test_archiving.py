"""``penstock archive run``: its settings, its output, and its end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from packages.client.tests.catalogs import configured
from penstock.client.sync.sync import Channel
from penstock.tables import Table
from penstock_testing.process import ServerProcess
from tests.patience import until

if TYPE_CHECKING:
    from tests.commands import Run

ICEBERG = "iceberg://prod/lake/orders"


def publish(channel: Channel, count: int) -> None:
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(count)])


@pytest.fixture
def sales(session: penstock.Session) -> Channel:
    return session.channels.create("sales")


def test_an_iceberg_table_gets_each_event_once(
    penstock_command: Run, sales: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = configured(tmp_path, monkeypatch)
    publish(sales, 3)
    command = ("archive", "run", "sales", "--table", ICEBERG, "--once")

    first = penstock_command(*command)
    publish(sales, 2)
    second = penstock_command(*command, "--format", "json")
    third = penstock_command(*command)

    assert first.stdout == "sales  3 events archived\n"
    assert first.stderr == "sales: 3 events, next is 3\n"
    assert json.loads(second.stdout) == {"sales": {"events": 2, "by_reference": 0, "lost": 0}}
    assert third.stdout == ""
    assert catalog.load_table(("lake", "orders")).scan().to_arrow().num_rows == 5
    assert sales.info().definition.archive == ICEBERG


@pytest.mark.spec("B8")
@pytest.mark.process
def test_sealed_events_are_archived_by_reference(
    penstock_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = configured(tmp_path, monkeypatch)
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        sales = session.channels.create(
            "sales", type="persistent", storage={"events_per_spindle": 10_000}
        )
        sales.publish_table({"n": range(20_005)})
        until(lambda: sales.info().storage.sealed_files == 2)
        command = ("archive", "run", "sales", "--table", ICEBERG, "--once", "--url", server.url)

        first = penstock_command(*command, "--by", "reference", "--verbose")
        sales.publish_table({"n": range(3)})
        second = penstock_command(*command, "--format", "json")
        other = ("archive", "run", "sales", "--table", str(tmp_path / "lake"), "--once")
        refused = penstock_command(*other, "--url", server.url, "--by", "reference")
        table = catalog.load_table(("lake", "orders"))
        stored = table.scan().to_arrow().column("n").to_pylist()

    assert first.stdout == ("sales  20,005 events archived, 20,000 by reference and 5 by value\n")
    assert first.stderr == (
        "sales: 20,000 events by reference, next is 20,000\n"
        "sales: 5 events, next is 20,005\n"
        "sales: copied by value: the events are not in sealed files\n"
    )
    assert json.loads(second.stdout) == {"sales": {"events": 3, "by_reference": 0, "lost": 0}}
    assert sorted(stored) == sorted([*range(20_005), *range(3)])
    assert refused.exit_code != 0
    assert "the table has the format delta, not iceberg; pass --by auto" in refused.stderr


def test_losses_end_it_or_are_counted(
    penstock_command: Run, sales: Channel, tmp_path: Path
) -> None:
    command = ("archive", "run", "sales", "--table", str(tmp_path / "lake"), "--once")
    publish(sales, 1)
    penstock_command(*command)
    publish(sales, 9)
    sales.purge(start=4, end=5)

    refused = penstock_command(*command)
    allowed = penstock_command(*command, "--allow-losses")

    assert refused.exit_code != 0
    assert "events 4-5 were purged; pass --allow-losses" in refused.stderr
    assert allowed.stdout == "sales  7 events archived, 2 lost\n"
    assert "sales: before they were archived, events 4-5 were purged\n" in allowed.stderr
    publish(sales, 4)
    sales.purge(start=11, end=11)
    counted = penstock_command(*command, "--allow-losses", "--format", "json")
    assert json.loads(counted.stdout) == {"sales": {"events": 3, "by_reference": 0, "lost": 1}}


def test_a_pattern_fills_a_folder_of_delta_tables(
    penstock_command: Run, session: penstock.Session, tmp_path: Path
) -> None:
    for name in ("eu/a", "eu/b"):
        publish(session.channels.create(name), 2)
    lake = str(tmp_path / "lake")
    options = ("--no-register", "--partition-by", "none", "--once")

    shown = penstock_command("archive", "run", "eu/*", "--table", lake, *options)

    assert shown.stdout == "eu/a  2 events archived\neu/b  2 events archived\n"
    table = Table.found(f"{lake}/eu~2Fa")
    assert (table.format, table.partition_by, len(table.to_arrow())) == ("delta", (), 2)
    assert session.channels.get("eu/a").info().definition.archive == ""


def test_plain_parquet_is_written_with_advice(
    penstock_command: Run, sales: Channel, tmp_path: Path
) -> None:
    publish(sales, 2)
    command = ("archive", "run", "sales", "--table", str(tmp_path / "lake"), "--once")

    shown = penstock_command(*command, "--table-format", "parquet")

    assert shown.stdout == "sales  2 events archived\n"
    assert "write a table of the format delta or iceberg" in shown.stderr


def test_a_signal_ends_it_between_two_commits(
    penstock_command: Run, sales: Channel, tmp_path: Path
) -> None:
    publish(sales, 3)
    lake = str(tmp_path / "lake")

    def end_when_copied() -> None:
        until(lambda: sales.info().definition.archive == lake)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end_when_copied)
    ending.start()
    shown = penstock_command("archive", "run", "sales", "--table", lake)
    ending.join()

    assert (shown.exit_code, shown.stdout) == (0, "sales  3 events archived\n")


def test_errors_name_what_was_wrong(penstock_command: Run, sales: Channel, tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        shown = penstock_command("archive", "run", "sales", "--once", *options)
        assert shown.exit_code != 0
        return shown.stderr

    publish(sales, 1)
    nowhere = refused("--table", "iceberg://nowhere/lake/t")
    assert "'nowhere' of iceberg://nowhere/lake/t is not configured" in nowhere
    assert "format is 'delta'" in refused("--table", ICEBERG, "--table-format", "delta")
    lake = str(tmp_path / "lake")
    assert "no durable 'lake'; create it first" in refused("--table", lake, "--durable", "lake")
    assert "'soon' is not a duration" in refused("--table", lake, "--every", "soon")
    assert (
        "no channel nothing"
        in penstock_command("archive", "run", "nothing", "--table", lake, "--once").stderr
    )


def test_a_channel_names_its_table_for_clients_in_any_folder(
    penstock_command: Run, sales: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(sales, 3)

    penstock_command("archive", "run", "sales", "--table", "lake/sales", "--once")

    assert sales.info().definition.archive == str(tmp_path / "lake" / "sales")
