"""What the MQTT side of a realm is handed out, and when it says that it takes more."""

from __future__ import annotations

from typing import Any

from penstock_mqtt.following import CREDIT, CreditGrant


class Subscriptions:
    def __init__(self) -> None:
        self.granted: list[tuple[int, int]] = []

    def credit(self, subscription: int, count: int) -> None:
        self.granted.append((subscription, count))


def test_the_realm_is_not_told_of_each_message_and_never_runs_out() -> None:
    known: Any = Subscriptions()
    credit = CreditGrant(known)
    left = CREDIT
    for count in [1] * CREDIT + [CREDIT // 3] * 30:
        left -= count
        assert left >= 0
        before = len(known.granted)
        credit.sent(7, count)
        left += sum(each for _, each in known.granted[before:])

    assert len(known.granted) < 30
    assert {number for number, _ in known.granted} == {7}


def test_the_next_subscription_begins_with_all_of_its_credit() -> None:
    known: Any = Subscriptions()
    credit = CreditGrant(known)
    credit.sent(7, CREDIT // 2 - 1)
    credit.end()
    credit.sent(8, 1)

    assert known.granted == []
