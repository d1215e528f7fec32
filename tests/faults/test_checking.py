"""The checks find each kind of violation in hand-made records."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock_core.ids.ids import IdSet, Span
from tests.faults.checking import (
    Publishing,
    check_durable,
    check_messages,
    check_publishing,
    check_queue,
    check_subscription,
    check_together,
    ids_by_publisher,
)
from tests.faults.journal_lines import EVENTS, done, got, published, stored
from tests.faults.journals import (
    Acknowledged,
    Diary,
    Received,
    ids_of_spans,
    read_published,
    read_received,
    spans_of,
)
from tests.faults.names import event_of, publisher_of


def test_records_without_violations_pass() -> None:
    violations: list[str] = []
    lines = [*done(0, 0, 1, 2), *done(10, 3, 4, 5, consumer="b")]
    check_publishing(published(), ids_by_publisher(EVENTS, "log", violations)["single"], violations)
    for kind in ("exclusive", "serial", "shared"):
        check_durable(kind, lines, EVENTS, violations=violations)
    check_subscription("s", [got(0, 0, 1, 2, 3), got(1, 4, 5)], EVENTS, violations=violations)
    row, _ = check_queue("work", lines, [published()], violations=violations)

    assert violations == []
    assert (row.received, row.confirmed, row.again, row.missed) == (6, 6, 0, 0)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (stored(0, 1, 2, 3, 4), "acknowledged and gone: 5"),
        ({**stored(0, 1, 2, 3, 4, 5), 2: [2, 9]}, "stored twice: 2"),
        ({**stored(0, 1, 2, 3, 4, 5), 6: [6]}, "stored and never tried: 6"),
        ({**stored(0, 1, 2, 3, 4, 5), 4: [7]}, "ids do not follow the order"),
        ({**stored(0, 1, 2, 3, 4), 5: [8]}, "0 was told id 0 and has another"),
    ],
)
def test_violations_in_stored_events_are_found(ids: dict[int, list[int]], text: str) -> None:
    violations: list[str] = []
    row = check_publishing(published(), ids, violations)

    assert any(text in violation for violation in violations), violations
    assert isinstance(row, Publishing)


def test_events_of_a_publisher_that_repeats_publishes_itself_may_be_stored_twice() -> None:
    violations: list[str] = []
    row = check_publishing(
        published("careless"), {**stored(0, 1, 2, 3, 4, 5), 2: [2, 9]}, violations
    )

    assert (violations, row.duplicated, row.lost) == ([], 1, 0)


@pytest.mark.parametrize(
    ("kind", "lines", "text"),
    [
        ("shared", done(0, 0, 1, 2, 3, 4), "nobody acknowledged 5"),
        ("shared", [*done(0, *range(6)), got(9, 3)], "came again after their ack"),
        (
            "shared",
            [*done(0, *range(6)), *done(9, 3, consumer="b")],
            "confirmed to two consumers: 3",
        ),
        ("serial", [*done(0, 0, 1, 3), *done(9, 2, 4, 5, consumer="b")], "it was the turn of 2"),
        ("exclusive", [*done(0, 1, 2), *done(9, 0, 3, 4, 5)], "it was the turn of 0"),
        ("shared", [*done(0, *range(6)), got(9, 77, consumer="b")], "does not have: 77"),
    ],
)
def test_violations_in_deliveries_are_found(kind: str, lines: list[Received], text: str) -> None:
    violations: list[str] = []
    check_durable(kind, lines, EVENTS, violations=violations)

    assert any(text in violation for violation in violations), violations


def test_other_contents_than_were_published_are_found() -> None:
    violations: list[str] = []
    ids_by_publisher({0: EVENTS[0][:-1], 1: b"nobody's"}, "log", violations)
    lines = [replace(line, digest="0") if line.digest else line for line in done(0, *range(6))]
    check_durable("shared", lines, EVENTS, violations=violations)

    assert "events 0, 1 are not what anybody published" in violations[0]
    assert "other contents" in violations[1]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([got(0, 0, 1, 2, 4, 5)], "never received 3"),
        ([got(0, 0, 1, 2), got(1, 2, 3, 4, 5)], "out of order or again: 2"),
    ],
)
def test_a_gap_or_a_repetition_in_a_subscription_is_found(lines: list[Received], text: str) -> None:
    violations: list[str] = []
    check_subscription("s", lines, EVENTS, violations=violations)

    assert any(text in violation for violation in violations), violations


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([got(0, 0, 1, 2, 4, 5)], "never received 3"),
        ([got(0, 0, 1, 2), got(1, 2, 3, 4, 5)], "received twice: 2"),
        ([got(0, 0, 1, 3, 2, 4, 5)], "out of order"),
        ([got(0, *range(6), 77)], "does not have: 77"),
    ],
)
def test_violations_in_messages_are_found(lines: list[Received], text: str) -> None:
    violations: list[str] = []
    check_messages("m", lines, stored(*range(6)), violations=violations, is_once=True)

    assert any(text in violation for violation in violations), violations


def test_qos_1_may_repeat_messages_and_those_of_a_killed_client_may_be_missing() -> None:
    violations: list[str] = []
    repeated = [got(0, 0, 1, 2), got(1, 1, 2, 3, 4, 5)]
    row = check_messages("m", repeated, stored(*range(6)), violations=violations, is_once=False)
    gap = [got(0, 0, 1, 3, 4, 5)]
    check_messages("m", gap, stored(*range(6)), violations=violations, is_once=True, tolerated=1)

    assert violations == []
    assert (row.received, row.again, row.missed) == (6, 2, 0)


def test_lost_and_repeated_events_of_a_queue_are_found() -> None:
    violations: list[str] = []
    twice = replace(got(9, 0), ids=[7])
    check_queue("work", [*done(0, 0, 1, 2, 3, 4), twice], [published()], violations=violations)
    tolerated: list[str] = []
    check_queue("pops", [got(0, 0, 1, 2, 3, 4)], [published()], violations=tolerated, tolerated=1)

    assert "no reader got single:5" in violations[0]
    assert "single is there twice: 0" in violations[1]
    assert tolerated == []


def test_a_torn_transaction_is_found() -> None:
    violations: list[str] = []
    check_together(stored(1, 2), stored(2, 3), violations)

    assert violations == ["joint: in one of the two stores only: 1, 3"]


def test_records_are_read_as_written_and_continue_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "single.published"
    for first in (0, 10):
        diary = Diary(path)
        diary.record_attempt(first, 10)
        diary.record_acknowledged(first, 10, first_id=100 + first)
    Diary(path).record_attempt(20, 5)
    with path.open("a") as file:
        file.write("ok 20 5 1")  # the process was killed while it wrote
    read = read_published(path)

    assert (read.next, read.open) == (25, (20, 5))
    assert read.attempted == IdSet([Span(0, 25)])
    assert read.acknowledged == IdSet([Span(0, 20)])
    assert read.answers == [Acknowledged(0, 10, 100), Acknowledged(10, 10, 110)]


def test_lines_of_several_consumers_are_in_the_order_of_time(tmp_path: Path) -> None:
    paths = [tmp_path / "shared.1.received", tmp_path / "shared.2.received"]
    first, second = map(Diary, paths)
    first.record_received([3, 4, 9], [EVENTS[3], EVENTS[4], b"?"], named=True)
    second.record_received([5], [EVENTS[5]])
    first.record_acknowledging([3, 4, 9])
    first.record_confirmed([3, 4, 9])
    lines = read_received(paths)

    assert [(line.consumer, line.what) for line in lines] == [
        ("shared.1", "got"),
        ("shared.2", "got"),
        ("shared.1", "ack"),
        ("shared.1", "acked"),
    ]
    assert lines[0].ids == [3, 4, 9]
    assert lines[0].events == (("single", 3), ("single", 4), ("?", 0))


def test_only_events_of_publishers_name_their_publisher() -> None:
    assert publisher_of(event_of("table", 4_711)) == ("table", 4_711)
    assert publisher_of(event_of("table", 4_711)[:-1]) is None
    assert publisher_of(b"table:x:") is None
    assert publisher_of(b"\xff:1:") is None
    assert ids_of_spans(spans_of([3, 4, 5, 9, 1])) == [3, 4, 5, 9, 1]
