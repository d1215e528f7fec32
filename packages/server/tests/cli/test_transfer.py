"""``penstock channel export`` and ``penstock channel import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel

if TYPE_CHECKING:
    from tests.commands import Run

pytestmark = pytest.mark.spec("C7")


def test_a_channel_goes_through_a_folder(
    penstock_command: Run, orders: Channel, session: penstock.Session, tmp_path: Path
) -> None:
    folder = str(tmp_path / "export")
    exported = penstock_command("channel", "export", "orders", folder)
    back = penstock_command("channel", "import", folder, "archive/orders")

    assert exported.stdout == f"channel orders exported to {folder}: 5 events\n"
    assert back.stdout == f"channel archive/orders imported from {folder}: 5 events\n"
    assert session.channels.get("archive/orders").read().equals(orders.read())


def test_a_refused_import_prints_the_reason_in_one_line(
    penstock_command: Run, orders: Channel, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    penstock_command("channel", "export", "orders", str(folder))
    imported = penstock_command("channel", "import", str(folder))
    (folder / "state.msgpack").unlink()
    damaged = penstock_command("channel", "import", str(folder), "new")

    assert (imported.exit_code, damaged.exit_code) == (1, 1)
    assert imported.stderr == "error: orders already exists [name-already-bound]\n"
    assert damaged.stderr == f"error: {folder}: state.msgpack is missing [damaged-export]\n"


def test_a_queue_goes_through_a_folder(
    penstock_command: Run, session: penstock.Session, tmp_path: Path
) -> None:
    folder = str(tmp_path / "export")
    session.queues.create("work").push(b"job")
    exported = penstock_command("queue", "export", "work", folder)
    back = penstock_command("queue", "import", folder, "copy")

    assert exported.stdout == f"queue work exported to {folder}: 1 event\n"
    assert back.stdout == f"queue copy imported from {folder}: 1 event\n"
    with session.queues.get("copy").reader() as reader:
        assert [event.data for event in reader.fetch(1, timeout=30.0)] == [b"job"]
