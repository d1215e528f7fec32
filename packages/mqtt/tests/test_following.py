"""The MQTT side of a realm requests credit in batches."""

from __future__ import annotations

from typing import Any

from penstock_mqtt.following import CREDIT, CreditGrant


class Subscriptions:
    def __init__(self) -> None:
        self.granted: list[tuple[int, int]] = []

    def credit(self, subscription: int, count: int) -> None:
        self.granted.append((subscription, count))


def test_the_realm_is_not_told_of_each_message_and_never_runs_out() -> None:
    subscriptions: Any = Subscriptions()
    credit = CreditGrant(subscriptions)
    unused = CREDIT
    for count in [1] * CREDIT + [CREDIT // 3] * 30:
        unused -= count
        assert unused >= 0
        before = len(subscriptions.granted)
        credit.sent(7, count)
        unused += sum(count for _, count in subscriptions.granted[before:])

    assert len(subscriptions.granted) < 30
    assert {number for number, _ in subscriptions.granted} == {7}


def test_the_next_subscription_begins_with_all_of_its_credit() -> None:
    subscriptions: Any = Subscriptions()
    credit = CreditGrant(subscriptions)
    credit.sent(7, CREDIT // 2 - 1)
    credit.end()
    credit.sent(8, 1)

    assert subscriptions.granted == []
