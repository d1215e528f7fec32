"""A repeated publish is stored once."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import play_of
from penstock_core.access.name_owners import owned, with_content
from penstock_core.channel.producers import (
    FORGET_AFTER_US,
    LASTING_FORGET_AFTER_US,
    LASTING_NAMES_MAX,
    LASTING_REMEMBERED_MAX,
    NAMES_MAX,
    REMEMBERED_MAX,
    Producers,
)
from penstock_core.ids.ids import Span
from penstock_core.messages.publishing import Publish
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import DifferentContent, SequenceTooOld

pytestmark = pytest.mark.spec("X3")


def publish_by(producer: str, sequence: int, count: int = 2) -> Publish:
    return Publish(Digest(count, 10, 5), producer, sequence)


@pytest.mark.parametrize("how", ["none", "restart", "restart_from_snapshot"])
def test_a_retry_is_answered_with_the_first_ids(how: str) -> None:
    play = play_of(events=3)
    play.do(publish_by("p", 1))
    if how != "none":
        getattr(play, how)()
    play.do(publish_by("p", 1))

    assert play.answer == Span(3, 5)
    assert len(play.channel.state.stored) == 5


def test_producers_and_sequences_are_told_apart() -> None:
    play = play_of()
    answers = []
    for command in (publish_by("p", 1), publish_by("q", 1), publish_by("p", 2), publish_by("q", 1)):
        play.do(command)
        answers.append(play.answer)

    assert answers == [Span(0, 2), Span(2, 4), Span(4, 6), Span(2, 4)]


def test_a_lower_number_that_was_never_stored_is_stored() -> None:
    producers = Producers()
    producers.stored("p", 5, Span(0, 1), at_us=0)

    assert producers.stored_as("p", 3) is None
    producers.stored("p", 3, Span(1, 2), at_us=0)
    assert producers.stored_as("p", 3) == Span(1, 2)
    assert producers.stored_as("p", 5) == Span(0, 1)


def test_what_is_too_old_to_tell_is_refused_not_guessed() -> None:
    producers = Producers()
    for sequence in range(2 * REMEMBERED_MAX):
        producers.stored("p", sequence, Span(sequence, sequence + 1), at_us=0)

    assert producers.stored_as("p", REMEMBERED_MAX) == Span(REMEMBERED_MAX, REMEMBERED_MAX + 1)
    with pytest.raises(SequenceTooOld, match="use a new producer"):
        producers.stored_as("p", REMEMBERED_MAX - 1)


def test_a_producer_silent_for_a_day_is_forgotten_a_transaction_is_not() -> None:
    producers = Producers()
    producers.stored("p", 1, Span(0, 1), at_us=0)
    producers.stored("txn:q", 1, Span(1, 2), at_us=0)
    producers.stored("r", 1, Span(2, 3), at_us=FORGET_AFTER_US + 1)

    assert producers.stored_as("p", 1) is None
    assert producers.stored_as("txn:q", 1) == Span(1, 2)
    assert len(producers) == 2


@pytest.mark.spec("X3")
def test_after_a_clock_that_was_ahead_a_producer_is_forgotten_after_a_day_of_silence() -> None:
    producers = Producers()
    producers.stored("p", 1, Span(0, 1), at_us=9 * FORGET_AFTER_US)
    producers.lower(0)
    producers.stored("q", 1, Span(1, 2), at_us=FORGET_AFTER_US)
    assert producers.stored_as("p", 1) == Span(0, 1)
    producers.stored("q", 2, Span(2, 3), at_us=FORGET_AFTER_US + FORGET_AFTER_US // 24)

    assert producers.stored_as("p", 1) is None


def test_a_refused_publish_leaves_no_memory() -> None:
    producers = Producers()
    copy = Producers()
    copy.restore(producers.state())

    assert producers.stored_as("p", 1) is None
    assert len(copy) == 0


def test_what_was_stored_before_the_realm_knew_its_users_is_found_and_not_taken_up() -> None:
    producers = Producers()
    producers.stored("txn:job", 5, Span(0, 1), at_us=0)
    mine = owned("txn:job", "alice")

    assert producers.stored_as(mine, 5) == Span(0, 1)
    assert producers.stored_as(mine, 6) is None
    producers.stored(mine, 6, Span(1, 2), at_us=0)
    assert producers.stored_as(owned("txn:job", "bob"), 6) is None
    assert producers.stored_as(mine, 6) == Span(1, 2)
    assert producers.stored_as(mine, 5) == Span(0, 1)


@pytest.mark.slow
def test_pipelines_of_one_user_have_an_end_and_are_not_those_of_another() -> None:
    producers = Producers()
    producers.stored(owned("txn:theirs", "bob"), 1, Span(0, 1), at_us=0)
    for n in range(LASTING_NAMES_MAX + 5):
        producers.stored(owned(f"txn:{n}", "alice"), 1, Span(n + 1, n + 2), at_us=n)

    assert producers.stored_as(owned("txn:theirs", "bob"), 1) == Span(0, 1)
    assert producers.stored_as(owned("txn:4", "alice"), 1) is None
    assert producers.stored_as(owned("txn:5", "alice"), 1) == Span(6, 7)
    assert len(producers) == LASTING_NAMES_MAX + 1


def test_a_pipeline_is_remembered_for_longer_than_a_year() -> None:
    producers = Producers()
    producers.stored("txn:job", 1, Span(0, 1), at_us=0)
    producers.stored("x", 1, Span(1, 2), at_us=LASTING_FORGET_AFTER_US - 1)
    assert producers.stored_as("txn:job", 1) == Span(0, 1)

    producers.stored("x", 2, Span(2, 3), at_us=LASTING_FORGET_AFTER_US + FORGET_AFTER_US)
    assert producers.stored_as("txn:job", 1) is None


@pytest.mark.slow
def test_made_up_producers_push_out_the_silent_ones_and_no_pipeline() -> None:
    producers = Producers()
    producers.stored("txn:job", 1, Span(0, 1), at_us=0)
    for n in range(NAMES_MAX + 1):
        producers.stored(f"p{n}", 1, Span(n + 1, n + 2), at_us=n)

    assert len(producers) == 1 + NAMES_MAX + 1 - NAMES_MAX // 10
    assert producers.stored_as("p0", 1) is None
    assert producers.stored_as(f"p{NAMES_MAX}", 1) == Span(NAMES_MAX + 1, NAMES_MAX + 2)
    assert producers.stored_as("txn:job", 1) == Span(0, 1)


@pytest.mark.parametrize("how", ["none", "restart", "restart_from_snapshot"])
@pytest.mark.parametrize("user", ["", "anna"])
def test_the_same_number_with_other_content_is_refused(how: str, user: str) -> None:
    def batch(content: str, sequence: int) -> Publish:
        return publish_by(owned(with_content("txn:query", content), user), sequence)

    play = play_of()
    play.do(batch("", 6))
    play.do(batch("offsets 0-10", 7))
    play.do(batch("offsets 10-20", 8))
    if how != "none":
        getattr(play, how)()

    for content in ("offsets 0-10", ""):  # a client that says nothing is answered as ever
        play.do(batch(content, 7))
        assert play.answer == Span(2, 4)
    play.do(batch("offsets 0-10", 6))
    assert play.answer == Span(0, 2), "stored before contents were kept"
    with pytest.raises(DifferentContent, match="publish 7 of producer txn:query is stored with"):
        play.do(batch("offsets 0-30", 7))
    play.do(batch("offsets 20-30", 9))
    assert play.answer == Span(6, 8)


def test_contents_are_forgotten_with_their_publishes() -> None:
    producers = Producers()
    for n in range(10 * LASTING_REMEMBERED_MAX):
        producers.stored(with_content("txn:query", f"c{n}"), n, Span(n, n + 1), at_us=n)
    restored = Producers()
    restored.restore(producers.state())

    assert len(producers) == len(restored) == 1
    assert len(producers.state()) <= 2 * LASTING_REMEMBERED_MAX
    assert restored.state() == producers.state()
    with pytest.raises(SequenceTooOld):
        producers.stored_as(with_content("txn:query", "c1"), 1)


def test_producers_silent_for_longest_keep_their_newest_publishes_above_the_limit() -> None:
    producers = Producers(all_max=200)
    for name in "abc":
        for sequence in range(80):
            producers.stored(name, sequence, Span(sequence, sequence + 1), at_us=ord(name))

    assert producers.stored_as("c", 0) == Span(0, 1)
    assert producers.stored_as("a", 79) == Span(79, 80)
    with pytest.raises(SequenceTooOld):
        producers.stored_as("a", 0)


def test_a_channel_remembers_a_bounded_number_of_publishes() -> None:
    producers = Producers(all_max=200)
    for producer in range(50):
        for sequence in range(60):
            producers.stored(f"p{producer}", sequence, Span(0, 1), at_us=producer)

    kept = [entry for _, _, _, recent in producers.remembered() for entry in recent]
    assert len(kept) <= 200
    assert all(producers.stored_as(f"p{producer}", 59) for producer in range(50))
