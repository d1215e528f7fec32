"""Temporary destinations: their names, and when nobody uses a reply queue any more."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.temporary import (
    IdleReplyQueues,
    is_reply_queue,
    is_temporary,
    name_in_address,
)

DIGITS = "0123456789abcdef" * 2
A, B = f"temp-reply-{DIGITS}", f"temp-reply-{DIGITS[::-1]}"


@pytest.mark.spec("R2")
def test_a_temporary_destination_has_a_name_that_nobody_can_guess() -> None:
    assert all(is_temporary(f"temp-{kind}-{DIGITS}") for kind in ("queue", "topic", "reply"))
    assert is_reply_queue(A)
    assert not is_reply_queue(f"temp-queue-{DIGITS}")
    for name in ("temp-reply-", f"temp-reply-{DIGITS}0", A.upper(), f"x/{A}", f"temp-x-{DIGITS}"):
        assert not is_temporary(name)


@pytest.mark.spec("R2")
def test_an_address_may_have_the_scheme_of_amqp_clients() -> None:
    assert name_in_address("queue://a/b") == "a/b"
    assert name_in_address("topic://a") == "a"
    assert name_in_address("a://b") == "a://b"


@pytest.mark.spec("R3")
def test_a_reply_queue_is_removed_when_nobody_has_read_it_for_long_enough() -> None:
    idle = IdleReplyQueues(patience_us=60)

    assert idle.due([(A, False), (B, True)], 100) == []
    assert idle.due([(A, False), (B, False)], 159) == []
    assert idle.due([(A, False), (B, False)], 160) == [A]
    assert idle.due([(B, False)], 219) == [B]


@pytest.mark.spec("R3")
def test_a_session_that_comes_back_in_time_keeps_its_queue() -> None:
    idle = IdleReplyQueues(patience_us=60)
    idle.due([(A, False)], 100)
    idle.due([(A, True)], 150)

    assert idle.due([(A, False)], 170) == []
    assert idle.due([(A, False)], 229) == []
    assert idle.due([(A, False)], 230) == [A]
