"""``penstock queue``: administration, and events going in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel, Queue
from penstock_core.vocabulary.definitions import Storage

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.mark.spec("Q5")
def test_a_queue_is_created_with_the_attributes_on_the_command_line(
    penstock_command: Run, session: penstock.Session
) -> None:
    session.channels.create("dead")

    made = penstock_command(
        "queue",
        "create",
        "jobs",
        "--type",
        "reliable",
        "--ttl",
        "5m",
        "--capacity",
        "10",
        "--dead-event-store",
        "dead",
        "--max-deliveries",
        "3",
        "--key",
        "sku=2",
        "--honour-capacity",
        "--priority",
        "7",
    )
    definition = session.queues.get("jobs").info().definition

    assert (
        made.stdout
        == "queue jobs created: reliable, events stay until a reader takes them, at most 5 min\n"
    )
    assert (definition.type, definition.ttl, definition.capacity) == ("reliable", 300_000, 10)
    assert (definition.dead_event_store, definition.max_deliveries) == ("dead", 3)
    assert definition.keys == {"sku": 2}
    assert definition.storage == Storage(honour_capacity=True, priority=7)


def test_the_list_has_a_line_for_each_queue(
    penstock_command: Run, orders: Channel, work: Queue
) -> None:
    penstock_command("queue", "create", "empty", "--type", "simple")

    header, empty, stored = penstock_command("queue", "list").stdout.splitlines()

    assert header.split()[:5] == ["queue", "type", "events", "in", "flight"]
    assert empty.split()[:4] == ["empty", "simple", "(deprecated)", "0"]
    assert stored.split()[:3] == ["work", "persistent", "5"]


def test_the_list_as_json_is_one_document(penstock_command: Run, work: Queue) -> None:
    (listed,) = json.loads(penstock_command("queue", "list", "--format", "json").stdout)

    assert (listed["name"], listed["events"]) == ("work", 5)
    assert listed["definition"]["kind"] == "queue"
    assert listed["conservation"]["holds"]


def test_an_empty_list_shows_the_create_command(penstock_command: Run, orders: Channel) -> None:
    assert "penstock queue create" in penstock_command("queue", "list").stdout


@pytest.mark.spec("T8")
def test_show_has_the_readers_and_the_counts_of_all_events(
    penstock_command: Run, work: Queue
) -> None:
    work.purge(start=4)
    with work.reader(transactional=True) as reader:
        reader.fetch(1, timeout=5.0)
        reader.commit()
        reader.fetch(1, timeout=5.0)
        reader.rollback()
        reader.fetch(2, timeout=5.0)
        shown = penstock_command("queue", "show", "work").stdout

    assert "queue         work\n" in shown
    assert "readers       1; 2 events in flight\n" in shown
    assert "redelivered   1 of the stored events\n" in shown
    assert "\ndurables " not in shown
    assert shown.endswith("  5 published = 3 live + 1 consumed + 1 purged\n")


def test_show_as_json_has_the_same_numbers(penstock_command: Run, work: Queue) -> None:
    shown = json.loads(penstock_command("queue", "show", "work", "--format", "json").stdout)

    assert (shown["events"], shown["readers"], shown["in_flight"]) == (5, [], 0)


def test_edit_changes_only_the_attributes_on_the_command_line(
    penstock_command: Run, work: Queue
) -> None:
    work.edit(capacity=100)

    changed = penstock_command("queue", "edit", "work", "--ttl", "1h")
    definition = work.info().definition

    assert changed.stdout == "queue work changed\n"
    assert (definition.ttl, definition.capacity) == (3_600_000, 100)


@pytest.mark.parametrize(
    ("options", "removed"),
    [(["--from", "1", "--to", "3"], 3), (["--selector", "minutes > 3"], 1), (["--yes"], 5)],
)
def test_purge_prints_the_number_of_removed_events(
    penstock_command: Run, work: Queue, options: list[str], removed: int
) -> None:
    purged = penstock_command("queue", "purge", "work", "--yes", *options)

    assert purged.stdout.startswith(f"queue work: {removed} event")
    assert work.info().counters.purged == removed


def test_a_deleted_queue_no_longer_exists(
    penstock_command: Run, session: penstock.Session, work: Queue
) -> None:
    deleted = penstock_command("queue", "delete", "work", "--yes")

    assert deleted.stdout == "queue work deleted\n"
    assert session.queues.list() == []


def test_maintain_prints_why_nothing_was_done(penstock_command: Run, work: Queue) -> None:
    done = penstock_command("queue", "maintain", "work")

    assert done.stdout.startswith("queue work: nothing to do; ")


def test_an_event_is_pushed_with_its_parts(penstock_command: Run, work: Queue) -> None:
    printed = penstock_command(
        "queue", "push", "work", "mow", "-p", "minutes=30", "--tag", "garden", "--priority", "9"
    )
    event = work.peek(1, selector="event_id = 5")[0]

    assert printed.stdout == "event 5 pushed to work\n"
    assert (event.data, event.tag, event.priority) == (b"mow", "garden", 9)
    assert event.properties == {"minutes": 30}


@pytest.mark.parametrize("ending", ["ndjson", "csv"])
def test_events_of_a_file_are_pushed(
    penstock_command: Run, work: Queue, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"jobs.{ending}"
    text = {"ndjson": '{"minutes": 7}\n{"minutes": 8}\n', "csv": "minutes\n7\n8\n"}
    file.write_text(text[ending])

    printed = penstock_command("queue", "push", "work", "--file", str(file))

    assert printed.stdout.startswith("2 events pushed to work, ids 5 .. 6, in ")
    assert [event.properties["minutes"] for event in work.peek(2, selector="minutes > 6")] == [7, 8]


@pytest.mark.spec("C7")
def test_a_queue_may_be_exported_and_imported(
    penstock_command: Run, session: penstock.Session, work: Queue, tmp_path: Path
) -> None:
    penstock_command("queue", "export", "work", str(tmp_path / "export"))
    made = penstock_command("queue", "import", str(tmp_path / "export"), "copy")

    assert made.exit_code == 0
    assert [event.data for event in session.queues.get("copy").peek(1)] == [b"job 0"]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["show", "nowhere"], "there is no queue nowhere", "name-does-not-exist"),
        (["show", "orders"], "orders is a channel", "name-does-not-exist"),
        (["push", "nowhere", "x"], "there is no queue nowhere", "name-does-not-exist"),
        (["pop", "nowhere"], "there is no queue nowhere", "name-does-not-exist"),
        (["peek", "work", "--selector", "minutes >"], "expected a value", "invalid-selector"),
        (["read", "work", "--selector", "minutes >"], "expected a value", "invalid-selector"),
        (["create", "orders"], "orders already exists", "name-already-bound"),
        (["create", "x", "--max-deliveries", "3"], "dead_event_store", "invalid-argument"),
        (["create", "x", "--cluster-wide"], "realm is on one machine", "invalid-argument"),
        (["delete", "nowhere"], "there is no queue nowhere", "name-does-not-exist"),
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
    refused = penstock_command("queue", *arguments)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert message in refused.stderr
    assert refused.stderr.splitlines()[0].endswith(f" [{code}]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "x", "--engine", "jms"], "No such option: --engine"),
        (["edit", "work"], "name at least one attribute to change"),
        (["push", "work"], "give DATA, a --property or a --file"),
        (["push", "work", "x", "--transient"], "No such option: --transient"),
        (["peek", "work", "--count", "0"], "--count"),
        (["read", "work", "--rollback"], "need --transactional"),
        (["read", "work", "--window", "3"], "need --transactional"),
        (
            ["read", "work", "--transactional", "--rollback", "--window", "2", "--count", "3"],
            "--count may not exceed the window of 2",
        ),
        (["pop", "work", "--format", "xml"], "xml"),
    ],
)
def test_wrong_usage_exits_with_2(
    penstock_command: Run, work: Queue, arguments: list[str], message: str
) -> None:
    refused = penstock_command("queue", *arguments)

    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
    assert work.info().counters.consumed == 0


def test_missing_lists_ids_that_readers_have_taken(
    penstock_command: Run, session: penstock.Session
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push_many([penstock.Event(b"x")] * 3)
    jobs.pop()
    jobs.close()

    _, missing_line = penstock_command("queue", "missing", "jobs").stdout.splitlines()

    assert missing_line.split() == ["consumed", "1", "0"]
