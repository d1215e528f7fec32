"""The checks have teeth: each kind of harm, written down as it would be, is found."""

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
    owners,
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
from tests.faults.names import event_of, parsed


def test_what_is_well_is_found_well() -> None:
    wrong: list[str] = []
    lines = [*done(0, 0, 1, 2), *done(10, 3, 4, 5, by="b")]
    check_publishing(published(), owners(EVENTS, "log", wrong)["single"], wrong)
    for kind in ("exclusive", "serial", "shared"):
        check_durable(kind, lines, EVENTS, wrong=wrong)
    check_subscription("s", [got(0, 0, 1, 2, 3), got(1, 4, 5)], EVENTS, wrong=wrong)
    row, _ = check_queue("work", lines, [published()], wrong=wrong)

    assert wrong == []
    assert (row.received, row.confirmed, row.again, row.missed) == (6, 6, 0, 0)


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        (stored(0, 1, 2, 3, 4), "acknowledged and gone: 5"),
        ({**stored(0, 1, 2, 3, 4, 5), 2: [2, 9]}, "stored twice: 2"),
        ({**stored(0, 1, 2, 3, 4, 5), 6: [6]}, "stored and never tried: 6"),
        ({**stored(0, 1, 2, 3, 4, 5), 4: [7]}, "ids do not follow the order"),
        ({**stored(0, 1, 2, 3, 4), 5: [8]}, "0 was told id 0 and has another"),
    ],
)
def test_harm_to_what_is_stored_is_found(ids: dict[int, list[int]], what: str) -> None:
    wrong: list[str] = []
    row = check_publishing(published(), ids, wrong)

    assert any(what in each for each in wrong), wrong
    assert isinstance(row, Publishing)


def test_a_publisher_that_publishes_again_by_itself_may_be_there_twice() -> None:
    wrong: list[str] = []
    row = check_publishing(published("careless"), {**stored(0, 1, 2, 3, 4, 5), 2: [2, 9]}, wrong)

    assert (wrong, row.duplicated, row.lost) == ([], 1, 0)


@pytest.mark.parametrize(
    ("kind", "lines", "what"),
    [
        ("shared", done(0, 0, 1, 2, 3, 4), "nobody acknowledged 5"),
        ("shared", [*done(0, *range(6)), got(9, 3)], "came again after their ack"),
        ("shared", [*done(0, *range(6)), *done(9, 3, by="b")], "confirmed to two consumers: 3"),
        ("serial", [*done(0, 0, 1, 3), *done(9, 2, 4, 5, by="b")], "it was the turn of 2"),
        ("exclusive", [*done(0, 1, 2), *done(9, 0, 3, 4, 5)], "it was the turn of 0"),
        ("shared", [*done(0, *range(6)), got(9, 77, by="b")], "does not have: 77"),
    ],
)
def test_harm_to_what_is_delivered_is_found(kind: str, lines: list[Received], what: str) -> None:
    wrong: list[str] = []
    check_durable(kind, lines, EVENTS, wrong=wrong)

    assert any(what in each for each in wrong), wrong


def test_other_contents_than_were_published_are_found() -> None:
    wrong: list[str] = []
    owners({0: EVENTS[0][:-1], 1: b"nobody's"}, "log", wrong)
    lines = [replace(line, digest="0") if line.digest else line for line in done(0, *range(6))]
    check_durable("shared", lines, EVENTS, wrong=wrong)

    assert "events 0, 1 are not what anybody published" in wrong[0]
    assert "other contents" in wrong[1]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([got(0, 0, 1, 2, 4, 5)], "never received 3"),
        ([got(0, 0, 1, 2), got(1, 2, 3, 4, 5)], "out of order or again: 2"),
    ],
)
def test_a_gap_or_a_repetition_in_a_subscription_is_found(lines: list[Received], what: str) -> None:
    wrong: list[str] = []
    check_subscription("s", lines, EVENTS, wrong=wrong)

    assert any(what in each for each in wrong), wrong


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([got(0, 0, 1, 2, 4, 5)], "never received 3"),
        ([got(0, 0, 1, 2), got(1, 2, 3, 4, 5)], "received twice: 2"),
        ([got(0, 0, 1, 3, 2, 4, 5)], "out of order"),
        ([got(0, *range(6), 77)], "does not have: 77"),
    ],
)
def test_harm_to_messages_is_found(lines: list[Received], what: str) -> None:
    wrong: list[str] = []
    check_messages("m", lines, stored(*range(6)), wrong=wrong, is_once=True)

    assert any(what in each for each in wrong), wrong


def test_a_message_of_qos_1_may_come_again_and_what_a_killed_client_had_may_be_missing() -> None:
    wrong: list[str] = []
    again = [got(0, 0, 1, 2), got(1, 1, 2, 3, 4, 5)]
    row = check_messages("m", again, stored(*range(6)), wrong=wrong, is_once=False)
    gap = [got(0, 0, 1, 3, 4, 5)]
    check_messages("m", gap, stored(*range(6)), wrong=wrong, is_once=True, tolerated=1)

    assert wrong == []
    assert (row.received, row.again, row.missed) == (6, 2, 0)


def test_what_a_queue_has_lost_or_has_twice_is_found() -> None:
    wrong: list[str] = []
    twice = replace(got(9, 0), ids=[7])
    check_queue("work", [*done(0, 0, 1, 2, 3, 4), twice], [published()], wrong=wrong)
    tolerated: list[str] = []
    check_queue("pops", [got(0, 0, 1, 2, 3, 4)], [published()], wrong=tolerated, tolerated=1)

    assert "no reader got single:5" in wrong[0]
    assert "single is there twice: 0" in wrong[1]
    assert tolerated == []


def test_a_torn_transaction_is_found() -> None:
    wrong: list[str] = []
    check_together(stored(1, 2), stored(2, 3), wrong)

    assert wrong == ["joint: in one of the two stores only: 1, 3"]


def test_a_diary_is_read_as_it_was_written_and_goes_on_after_a_death(tmp_path: Path) -> None:
    path = tmp_path / "single.published"
    for first in (0, 10):
        diary = Diary(path)
        diary.trying(first, 10)
        diary.done(first, 10, first_id=100 + first)
    Diary(path).trying(20, 5)
    with path.open("a") as file:
        file.write("ok 20 5 1")  # it died while it wrote
    read = read_published(path)

    assert (read.next, read.open) == (25, (20, 5))
    assert read.attempted == IdSet([Span(0, 25)])
    assert read.acknowledged == IdSet([Span(0, 20)])
    assert read.answers == [Acknowledged(0, 10, 100), Acknowledged(10, 10, 110)]


def test_lines_of_several_consumers_come_in_the_order_of_time(tmp_path: Path) -> None:
    paths = [tmp_path / "shared.1.received", tmp_path / "shared.2.received"]
    first, second = map(Diary, paths)
    first.got([3, 4, 9], [EVENTS[3], EVENTS[4], b"?"], named=True)
    second.got([5], [EVENTS[5]])
    first.acking([3, 4, 9])
    first.acked([3, 4, 9])
    lines = read_received(paths)

    assert [(line.by, line.what) for line in lines] == [
        ("shared.1", "got"),
        ("shared.2", "got"),
        ("shared.1", "ack"),
        ("shared.1", "acked"),
    ]
    assert lines[0].ids == [3, 4, 9]
    assert lines[0].events == (("single", 3), ("single", 4), ("?", 0))


def test_events_say_whose_they_are_and_nothing_else_does() -> None:
    assert parsed(event_of("table", 4_711)) == ("table", 4_711)
    assert parsed(event_of("table", 4_711)[:-1]) is None
    assert parsed(b"table:x:") is None
    assert parsed(b"\xff:1:") is None
    assert ids_of_spans(spans_of([3, 4, 5, 9, 1])) == [3, 4, 5, 9, 1]
