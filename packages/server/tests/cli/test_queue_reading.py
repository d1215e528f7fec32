"""``penstock queue pop``, ``peek`` and ``read``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.client.sync.sync import Queue

if TYPE_CHECKING:
    from tests.commands import Run


def ids(lines: str) -> list[int]:
    return [json.loads(line)["event_id"] for line in lines.splitlines()]


@pytest.mark.spec("Q1")
def test_pop_takes_the_next_event(penstock_command: Run, work: Queue) -> None:
    header, row = penstock_command("queue", "pop", "work").stdout.splitlines()

    assert header.split() == ["event_id", "published", "data", "minutes"]
    assert row.startswith("       0 ")
    assert row.endswith("job 0        0")
    assert (work.info().events, work.info().counters.consumed) == (4, 1)


def test_pop_as_json_is_an_event(penstock_command: Run, work: Queue) -> None:
    popped = json.loads(penstock_command("queue", "pop", "work", "--format", "json").stdout)

    assert (popped["event_id"], popped["data"]) == (0, "job 0")
    assert popped["properties"] == {"minutes": 0}


def test_pop_of_nothing_ends_at_the_timeout(penstock_command: Run, work: Queue) -> None:
    work.purge()

    popped = penstock_command("queue", "pop", "work", "--timeout", "0.1")

    assert (popped.exit_code, popped.stdout) == (0, "")
    assert popped.stderr == "no event arrived on work\n"


@pytest.mark.spec("Q4")
def test_peek_changes_nothing_and_prints_whether_the_queue_has_more(
    penstock_command: Run, work: Queue
) -> None:
    *rows, more = penstock_command("queue", "peek", "work", "--count", "2").stdout.splitlines()
    *_, end = penstock_command("queue", "peek", "work").stdout.splitlines()

    assert [row.split()[0] for row in rows] == ["event_id", "0", "1"]
    assert (more, end) == ("the queue has more events", "no more events")
    assert (work.info().events, work.info().redelivered) == (5, 0)


@pytest.mark.spec("Q4")
def test_peek_as_json_has_the_events_in_an_array(penstock_command: Run, work: Queue) -> None:
    shown = penstock_command(
        "queue",
        "peek",
        "work",
        "--count",
        "2",
        "--selector",
        "minutes <> 1",
        "--format",
        "json",
    )
    peeked = json.loads(shown.stdout)

    assert [event["event_id"] for event in peeked["events"]] == [0, 2]
    assert peeked["has_more"] is True


def test_peek_without_events_prints_a_message(penstock_command: Run, work: Queue) -> None:
    shown = penstock_command("queue", "peek", "work", "--selector", "minutes > 9")

    assert (shown.exit_code, shown.stdout) == (0, "no such events on work\n")


@pytest.mark.spec("Q1")
@pytest.mark.parametrize("options", [[], ["--transactional"], ["--transactional", "--commit"]])
def test_read_events_leave_the_queue(
    penstock_command: Run, work: Queue, options: list[str]
) -> None:
    printed = penstock_command(
        "queue", "read", "work", "--count", "3", "--format", "json", *options
    )
    info = work.info()

    assert ids(printed.stdout) == [0, 1, 2]
    assert (info.events, info.counters.consumed, info.redelivered, info.readers) == (2, 3, 0, ())


@pytest.mark.parametrize("options", [[], ["--transactional", "--window", "2"]])
def test_a_reader_with_a_selector_leaves_the_others(
    penstock_command: Run, work: Queue, options: list[str]
) -> None:
    printed = penstock_command(
        "queue",
        "read",
        "work",
        "--selector",
        "minutes > 1",
        "--timeout",
        "0.1",
        "--format",
        "json",
        *options,
    )

    assert ids(printed.stdout) == [2, 3, 4]
    assert [event.event_id for event in work.peek()] == [0, 1]


@pytest.mark.spec("Q3")
@pytest.mark.parametrize("bound", [["--window", "2"], ["--count", "2"]])
def test_rolled_back_events_are_redelivered_with_a_count(
    penstock_command: Run, work: Queue, bound: list[str]
) -> None:
    printed = penstock_command(
        "queue", "read", "work", "--transactional", "--rollback", *bound, "--format", "json"
    )
    again = penstock_command("queue", "pop", "work", "--format", "json")

    assert ids(printed.stdout) == [0, 1]
    assert printed.stderr == "2 events rolled back\n"
    assert json.loads(again.stdout)["redelivery_count"] == 1
    assert work.info().redelivered == 1


def test_a_rollback_without_events_prints_a_message(penstock_command: Run, work: Queue) -> None:
    work.purge()

    printed = penstock_command(
        "queue", "read", "work", "--transactional", "--rollback", "--timeout", "0"
    )

    assert printed.stderr == "0 events rolled back\nno events arrived\n"


def test_read_without_events_prints_a_message(penstock_command: Run, work: Queue) -> None:
    work.purge()

    printed = penstock_command("queue", "read", "work", "--timeout", "0")

    assert (printed.exit_code, printed.stdout, printed.stderr) == (0, "", "no events arrived\n")


def test_more_than_a_window_is_read_window_by_window(penstock_command: Run, work: Queue) -> None:
    printed = penstock_command(
        "queue",
        "read",
        "work",
        "--transactional",
        "--window",
        "2",
        "--count",
        "5",
        "--format",
        "json",
    )

    assert ids(printed.stdout) == [0, 1, 2, 3, 4]
    assert work.info().counters.consumed == 5
