"""``penstock channel``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync import Channel

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_a_channel_is_made_with_the_attributes_that_were_given(
    penstock_command: Run, session: penstock.Session
) -> None:
    made = penstock_command(
        *("channel", "create", "prices", "--type", "persistent", "--ttl", "5m"),
        *("--capacity", "10", "--honour-capacity", "--start-event-id", "7"),
    )
    definition = session.channels.get("prices").info().definition

    assert made.stdout == "channel prices created: persistent, events stay 5 min\n"
    assert (definition.type, definition.ttl, definition.capacity) == ("persistent", 300_000, 10)
    assert definition.storage.honour_capacity
    assert definition.start_event_id == 7


def test_the_list_has_a_line_for_each_channel(penstock_command: Run, orders: Channel) -> None:
    penstock_command("channel", "create", "empty")

    header, empty, stored = penstock_command("channel", "list").stdout.splitlines()

    assert header.split()[:5] == ["channel", "type", "events", "first", "last"]
    assert empty.split()[:3] == ["empty", "mixed", "0"]
    assert stored.split()[:5] == ["orders", "persistent", "5", "0", "4"]


def test_a_list_of_nothing_says_how_to_begin(penstock_command: Run) -> None:
    assert "penstock channel create" in penstock_command("channel", "list").stdout


def test_the_list_as_json_is_one_document(penstock_command: Run, orders: Channel) -> None:
    (listed,) = json.loads(penstock_command("channel", "list", "--format", "json").stdout)

    assert (listed["name"], listed["events"], listed["last_event_id"]) == ("orders", 5, 4)


@pytest.mark.spec("T8")
def test_show_prints_where_every_event_went(penstock_command: Run, orders: Channel) -> None:
    orders.purge(start=1, end=2)
    durable = orders.durables.create("billing", type="shared")
    for event in durable.fetch(1, timeout=5.0):
        event.ack()
    durable.flush()

    shown = penstock_command("channel", "show", "orders").stdout

    assert "conservation  5 published = 2 live + 1 consumed + 2 purged\n" in shown
    assert "ids           3 .. 4\n" in shown
    assert "durables      billing (shared, 2 outstanding)\n" in shown


def test_show_says_what_a_full_channel_does(penstock_command: Run) -> None:
    penstock_command("channel", "create", "prices", "--capacity", "1")

    shown = penstock_command("channel", "show", "prices").stdout

    assert "capacity      1 event; when full it drops the oldest\n" in shown
    assert "ids           none yet\n" in shown


def test_edit_changes_only_what_was_given(penstock_command: Run, orders: Channel) -> None:
    orders.edit(capacity=100)

    changed = penstock_command("channel", "edit", "orders", "--ttl", "1h", "--honour-capacity")
    definition = orders.info().definition

    assert changed.stdout == "channel orders changed\n"
    assert (definition.ttl, definition.capacity) == (3_600_000, 100)
    assert definition.storage.honour_capacity


def test_edit_of_nothing_is_wrong_usage(penstock_command: Run, orders: Channel) -> None:
    refused = penstock_command("channel", "edit", "orders")

    assert refused.exit_code == 2
    assert "say what to change" in refused.stderr


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        (["--from", "1", "--to", "3"], "3 events"),
        (["--selector", "price > 3"], "1 event"),
        (["--yes"], "5 events"),
        ([], "5 events"),
    ],
)
def test_purge_removes_and_says_how_many(
    penstock_command: Run, orders: Channel, options: list[str], removed: str
) -> None:
    purged = penstock_command("channel", "purge", "orders", *options)

    assert purged.stdout == f"channel orders: {removed} purged\n"
    assert orders.info().counters.purged == int(removed.split()[0])


def test_a_deleted_channel_is_gone(
    penstock_command: Run, session: penstock.Session, orders: Channel
) -> None:
    deleted = penstock_command("channel", "delete", "orders")

    assert deleted.stdout == "channel orders deleted\n"
    assert session.channels.list() == []


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["show", "nowhere"], "there is no channel nowhere", "name-does-not-exist"),
        (["delete", "nowhere"], "there is no channel nowhere", "name-does-not-exist"),
        (["create", "a b"], "'a b' has ' '", "invalid-name"),
        (["create", "orders"], "orders exists already", "name-already-bound"),
        (["create", "x", "--type", "fast"], "there are mixed, persistent", "invalid-argument"),
        (["create", "x", "--capacity", "-1"], "-1", "invalid-argument"),
        (["purge", "orders", "--selector", "price >"], "expected a value", "invalid-selector"),
    ],
)
def test_a_refusal_is_one_line_with_its_code(
    penstock_command: Run, orders: Channel, arguments: list[str], message: str, code: str
) -> None:
    refused = penstock_command("channel", *arguments)

    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert refused.stderr.startswith("error: ")
    assert message in refused.stderr
    assert refused.stderr.splitlines()[0].endswith(f" [{code}]")


def test_a_ttl_in_no_unit_anyone_knows_is_wrong_usage(penstock_command: Run) -> None:
    refused = penstock_command("channel", "create", "x", "--ttl", "5 fortnights")

    assert refused.exit_code == 2
    assert "500ms, 10s, 5m, 2h, 1d" in refused.stderr
