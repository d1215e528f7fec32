"""``penstock channel``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import penstock
from penstock.client.sync.sync import Channel, Queue
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_server.cli.program import app
from tests.commands import commands_of
from tests.patience import until

if TYPE_CHECKING:
    from tests.commands import Run


def test_a_channel_is_created_with_the_attributes_on_the_command_line(
    penstock_command: Run, session: penstock.Session
) -> None:
    made = penstock_command(
        "channel",
        "create",
        "prices",
        "--type",
        "persistent",
        "--ttl",
        "5m",
        "--capacity",
        "10",
        "--honour-capacity",
        "--start-event-id",
        "7",
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


def test_an_empty_list_shows_the_create_command(penstock_command: Run) -> None:
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

    assert "  live         2  stored and readable\n" in shown
    assert "  consumed     1  acknowledged by all durables that wanted them\n" in shown
    assert shown.endswith("  5 published = 2 live + 1 consumed + 2 purged\n")
    assert "ids           3 .. 4\n" in shown
    assert "durables      billing (shared, 2 outstanding)\n" in shown


@pytest.mark.spec("T8")
def test_the_sum_for_programs_has_every_term(
    penstock_command: Run, session: penstock.Session
) -> None:
    dead = session.channels.create("dead")
    busy = session.channels.create(
        "busy", type="persistent", capacity=2, dead_event_store="dead", keys={"sku": 1}
    )
    for sku in ("a", "a", "b", "c", "d"):
        busy.publish(properties={"sku": sku})
    busy.publish(transient=True)

    shown = json.loads(penstock_command("channel", "show", "busy", "--format", "json").stdout)

    terms = {name: number for name, number in shown["conservation"].items() if number}
    assert terms == {
        "published": 6,
        "live": 2,
        "dead": 2,
        "replaced": 1,
        "relayed": 1,
        "sum": 6,
        "holds": True,
    }
    assert dead.info().events == 2


def test_show_has_the_behaviour_of_a_full_channel(penstock_command: Run) -> None:
    penstock_command("channel", "create", "prices", "--capacity", "1")

    shown = penstock_command("channel", "show", "prices").stdout

    assert "capacity      1 event; when full it drops the oldest\n" in shown
    assert "ids           none yet\n" in shown


def test_edit_changes_only_the_attributes_on_the_command_line(
    penstock_command: Run, orders: Channel
) -> None:
    orders.edit(capacity=100)

    changed = penstock_command("channel", "edit", "orders", "--ttl", "1h", "--honour-capacity")
    definition = orders.info().definition

    assert changed.stdout == "channel orders changed\n"
    assert (definition.ttl, definition.capacity) == (3_600_000, 100)
    assert definition.storage.honour_capacity


def test_edit_of_nothing_is_wrong_usage(penstock_command: Run, orders: Channel) -> None:
    refused = penstock_command("channel", "edit", "orders")

    assert refused.exit_code == 2
    assert "name at least one attribute to change" in refused.stderr


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        (["--from", "1", "--to", "3"], "3 events"),
        (["--selector", "price > 3"], "1 event"),
        (["--yes"], "5 events"),
        ([], "5 events"),
    ],
)
def test_purge_prints_the_number_of_removed_events(
    penstock_command: Run, orders: Channel, options: list[str], removed: str
) -> None:
    purged = penstock_command("channel", "purge", "orders", "--yes", *options)

    assert purged.stdout == f"channel orders: {removed} purged\n"
    assert orders.info().counters.purged == int(removed.split()[0])


def test_missing_lists_ids_without_an_event_by_cause(
    penstock_command: Run, orders: Channel
) -> None:
    nothing = penstock_command("channel", "missing", "orders").stdout
    orders.purge(start=1, end=2)
    orders.purge(start=4, end=4)

    header, purged = penstock_command("channel", "missing", "orders").stdout.splitlines()
    some = penstock_command(
        "channel", "missing", "orders", "--from", "2", "--to", "3", "--format", "json"
    )

    assert nothing == "channel orders: every id has its event\n"
    assert header.split() == ["cause", "ids", "which"]
    assert purged.split() == ["purged", "3", "1-2,", "4"]
    assert json.loads(some.stdout) == [{"cause": "purged", "ids": 1, "which": [[2, 3]]}]


def test_a_deleted_channel_no_longer_exists(
    penstock_command: Run, session: penstock.Session, orders: Channel
) -> None:
    deleted = penstock_command("channel", "delete", "orders", "--yes")

    assert deleted.stdout == "channel orders deleted\n"
    assert session.channels.list() == []


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["show", "nowhere"], "there is no channel nowhere", "name-does-not-exist"),
        (["delete", "nowhere"], "there is no channel nowhere", "name-does-not-exist"),
        (["create", "a/*"], "'*' alone is a wildcard", "invalid-name"),
        (["create", "orders"], "orders already exists", "name-already-bound"),
        (["create", "x", "--type", "fast"], "allowed are mixed, off_heap", "invalid-argument"),
        (["create", "x", "--capacity", "-1"], "-1", "invalid-argument"),
        (["create", "x", "--engine", "jms,merge"], "cannot be combined", "invalid-argument"),
        (["create", "x", "--key", "sku=0"], "key sku has depth 0", "invalid-argument"),
        (["create", "x", "--type", "simple", "--cluster-wide"], "cluster-wide", "invalid-argument"),
        (["create", "x", "--cluster-wide"], "realm is on one machine", "invalid-argument"),
        (["edit", "orders", "--cluster-wide"], "realm is on one machine", "invalid-argument"),
        (["create", "x", "--dead-event-store", "gone"], "gone does not", "name-does-not-exist"),
        (["edit", "orders", "--dead-event-store", "orders"], "leads back", "invalid-argument"),
        (["edit", "orders", "--read-buffer-size", "1"], "4096 to", "invalid-argument"),
        (["show", "work"], "work is a queue", "name-does-not-exist"),
        (["maintain", "nowhere"], "there is no channel nowhere", "name-does-not-exist"),
        (
            ["purge", "orders", "--yes", "--selector", "price >"],
            "expected a value",
            "invalid-selector",
        ),
    ],
)
def test_a_refusal_is_one_line_with_its_code(
    penstock_command: Run,
    orders: Channel,
    work: Queue,
    arguments: list[str],
    message: str,
    code: str,
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
    assert "500ms, 10s, 5m, 2h and 1d" in refused.stderr


@pytest.mark.spec("C1")
def test_deprecated_types_are_marked_in_lists(penstock_command: Run) -> None:
    for name in ("mixed", "simple", "paged", "off_heap"):
        penstock_command("channel", "create", name, "--type", name)

    lines = penstock_command("channel", "list").stdout.splitlines()[1:]
    listed = json.loads(penstock_command("channel", "list", "--format", "json").stdout)

    marked = [line.split()[0] for line in lines if "(deprecated)" in line]
    assert marked == ["off_heap", "paged", "simple"]
    assert [listed_type["name"] for listed_type in listed if listed_type["deprecated"]] == marked


def test_all_attributes_reach_the_channel(penstock_command: Run, session: penstock.Session) -> None:
    session.channels.create("dead")

    made = penstock_command(
        "channel",
        "create",
        "c",
        "--type",
        "persistent",
        "--engine",
        "default",
        "--ttl",
        "1h",
        "--event-ttl",
        "--capacity",
        "5",
        "--honour-capacity",
        "--dead-event-store",
        "dead",
        "--key",
        "sku=1",
        "--key",
        "of=all=3",
        "--retain-consumed",
        "--no-cluster-wide",
        "--start-event-id",
        "7",
        "--priority",
        "6",
        "--stamp-dictionary",
        "--sync",
        "none",
        "--sync-max-batch-size",
        "65536",
        "--sync-batch-time",
        "5ms",
        "--events-per-spindle",
        "0",
        "--no-auto-maintenance",
        "--no-enable-caching",
        "--read-buffer-size",
        "8192",
        "--compression",
        "lz4",
    )

    assert made.exit_code == 0
    assert session.channels.get("c").info().definition == Definition(
        type="persistent",
        ttl=3_600_000,
        event_ttl=True,
        capacity=5,
        dead_event_store="dead",
        keys={"sku": 1, "of=all": 3},
        retain_consumed=True,
        start_event_id=7,
        storage=Storage(
            honour_capacity=True,
            priority=6,
            stamp_dictionary=True,
            sync="none",
            sync_max_batch_size=65_536,
            sync_batch_time=5,
            events_per_spindle=0,
            auto_maintenance=False,
            enable_caching=False,
            read_buffer_size=8_192,
            compression="lz4",
        ),
    )


@pytest.mark.spec("C3")
def test_a_dead_event_store_can_be_taken_away(
    penstock_command: Run, session: penstock.Session, orders: Channel
) -> None:
    session.channels.create("dead")
    penstock_command("channel", "edit", "orders", "--dead-event-store", "dead")
    store_name = orders.info().definition.dead_event_store

    penstock_command("channel", "edit", "orders", "--dead-event-store", "")

    assert (store_name, orders.info().definition.dead_event_store) == ("dead", "")


@pytest.mark.parametrize("option", [["--type", "simple"], ["--key", "a=1"], ["--engine", "jms"]])
def test_fixed_attributes_are_not_options_of_edit(
    penstock_command: Run, orders: Channel, option: list[str]
) -> None:
    refused = penstock_command("channel", "edit", "orders", *option)

    assert refused.exit_code == 2
    assert f"No such option: {option[0]}" in refused.stderr


@pytest.mark.parametrize("key", ["", "=1", "sku=", "sku=many", "sku=-1"])
def test_a_key_that_is_none_is_wrong_usage(penstock_command: Run, key: str) -> None:
    refused = penstock_command("channel", "create", "x", "--key", key)

    assert refused.exit_code == 2
    assert f"{key!r} is not a publish key" in refused.stderr


def test_a_key_given_twice_is_wrong_usage(penstock_command: Run) -> None:
    refused = penstock_command("channel", "create", "x", "--key", "a=1", "--key", "a=2")

    assert refused.exit_code == 2
    assert "publish key 'a' is given twice" in refused.stderr


@pytest.mark.parametrize(
    ("type", "storage"),
    [
        ("reliable", " B in memory"),
        ("simple", " B in memory"),
        ("off_heap", " B in memory outside the Python heap"),
        ("paged", "in memory-mapped pages of its own"),
        ("transient", "none: events are relayed"),
        ("mixed", " B of it in memory"),
    ],
)
def test_show_has_the_place_of_the_events(
    penstock_command: Run, session: penstock.Session, type: penstock.ChannelType, storage: str
) -> None:
    session.channels.create("c", type=type).publish(b"x", persistent=False)

    shown = penstock_command("channel", "show", "c").stdout.splitlines()

    (line,) = [line for line in shown if line.startswith("storage ")]
    assert line.endswith(storage)


def test_show_counts_scheduled_events(penstock_command: Run, orders: Channel) -> None:
    penstock_command("publish", "orders", "later", "--deliver-at", "+1h")

    shown = penstock_command("channel", "show", "orders").stdout

    assert "scheduled     1 event for later\n" in shown
    assert "events        5\n" in shown


def test_maintenance_rewrites_a_single_file() -> None:
    storage: penstock.StorageProperties = {"events_per_spindle": 0, "auto_maintenance": False}
    tuned = penstock.Realm(storage__segment_bytes=4_096, storage__seal_interval_ms=1)
    with tuned as realm, realm.connect() as session:
        single = session.channels.create("single", type="persistent", storage=storage)
        single.publish_many([penstock.Event(b"x" * 100) for _ in range(100)])
        until(lambda: single.info().storage.sealed_bytes > 0)
        single.purge(start=0, end=89)

        done = commands_of(realm)("channel", "maintain", "single")

    assert done.stdout.startswith("channel single rewritten: ")
    assert done.stdout.endswith(" now, 10 events\n")


def test_maintain_prints_why_nothing_was_done(penstock_command: Run, orders: Channel) -> None:
    done = penstock_command("channel", "maintain", "orders")

    assert done.stdout.startswith("channel orders: nothing to do; orders is kept in files of")


def test_a_realm_is_named_before_the_command_or_among_its_options(
    realm: penstock.Realm, orders: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "penstock://127.0.0.1:1")
    run = CliRunner().invoke

    before = run(app, ["--url", realm.listen(), "channel", "list"])
    among = run(
        app, ["--url", "penstock://127.0.0.1:2", "channel", "list", "--url", realm.listen()]
    )

    assert (before.exit_code, before.stdout) == (0, among.stdout)
    assert "orders" in before.stdout


@pytest.mark.spec("C2")
def test_a_normalized_name_is_reported(penstock_command: Run) -> None:
    made = penstock_command("channel", "create", "a b//c")

    assert made.stdout.startswith("channel a b/c created")
    assert "'a b//c' is read as 'a b/c'" in made.stderr
    assert penstock_command("channel", "create", "plain").stderr == ""
