"""``penstock realm``, and ``penstock info``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel, Queue

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.mark.parametrize("command", [("info",), ("realm", "show")])
def test_realm_show_describes_the_realm(
    penstock_command: Run, session: penstock.Session, orders: Channel, work: Queue, command: str
) -> None:
    shown = penstock_command(*command).stdout

    assert f"identity     {session.realm_id}\n" in shown
    assert f"version      {penstock.__version__}\n" in shown
    assert "channels     1\n" in shown
    assert "queues       1\n" in shown
    assert "connections  2, including this one\n" in shown


def test_memory_is_shown_by_kind(penstock_command: Run, session: penstock.Session) -> None:
    for type in ("reliable", "off_heap", "paged"):
        session.channels.create(type, type=type).publish(b"x" * 100)

    shown = penstock_command("realm", "show").stdout.splitlines()
    rows = {line[:11].strip(): line[13:] for line in shown}
    used = [rows[name].split(" of ")[0] for name in ("memory", "off heap", "paged")]

    assert all(amount != "0 B" for amount in used)
    assert rows["memory"].endswith(" of 1.0 GiB for events kept in memory")
    assert rows["off heap"].endswith(" of 1.0 GiB for off-heap channels")
    assert rows["paged"].endswith(" of 4.0 GiB for paged channels, on disk")


def test_json_output_has_the_same_facts(penstock_command: Run, session: penstock.Session) -> None:
    shown = json.loads(penstock_command("realm", "show", "--format", "json").stdout)

    assert (shown["identity"], shown["connections"]) == (session.realm_id, 2)
    assert {"memory_bytes", "off_heap_bytes", "paged_bytes", "queues"} <= shown.keys()
    assert shown["publishing_paused"] is False


@pytest.mark.spec("X5")
def test_publishing_can_be_paused_and_resumed(
    penstock_command: Run, orders: Channel, work: Queue
) -> None:
    paused = penstock_command("realm", "pause")
    shown = penstock_command("realm", "show").stdout
    refused = penstock_command("publish", "orders", "x")
    popped = penstock_command("queue", "pop", "work")
    resumed = penstock_command("realm", "resume")
    published = penstock_command("publish", "orders", "x")

    assert paused.stdout == "publishing is paused; penstock realm resume ends the pause\n"
    assert "publishing   paused\n" in shown
    assert refused.exit_code == 1
    assert refused.stderr.endswith("[publishing-paused]\n")
    assert "job 0" in popped.stdout
    assert resumed.stdout == "publishing is resumed\n"
    assert published.stdout == "event 5 published on orders\n"
