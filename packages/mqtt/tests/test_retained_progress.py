"""The count of the retained messages that a subscription owes its client."""

from __future__ import annotations

from penstock_mqtt.filters import RetainedProgress


def test_a_debt_is_paid_once_all_searches_and_all_messages_have_ended() -> None:
    progress = RetainedProgress(is_owed=True)
    progress.begin_search()
    progress.begin_message(7)
    assert not progress.end_search()
    progress.begin_search()  # the client subscribes again, and message 7 is sent again
    progress.begin_message(7)
    assert not progress.end_message(7)
    assert progress.end_search()
    assert not progress.is_owed


def test_a_message_that_ends_twice_or_was_sent_by_another_connection_pays_nothing() -> None:
    progress = RetainedProgress(is_owed=True)
    progress.begin_message(7)
    progress.begin_message(8)
    assert not progress.end_message(7)
    assert not progress.end_message(7)
    assert not progress.end_message(9)
    assert progress.end_message(8)
    assert not progress.end_message(8)


def test_without_a_debt_nothing_is_paid() -> None:
    progress = RetainedProgress()
    progress.begin_search()
    assert not progress.end_search()
