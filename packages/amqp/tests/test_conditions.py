"""Every error has an AMQP condition, and a name has one meaning."""

from __future__ import annotations

import pytest

import penstock
from penstock_amqp.addresses import durable_name_of, parse_address
from penstock_amqp.conditions import CONDITIONS, condition_of, description_of
from penstock_core.vocabulary.errors import (
    CapacityReached,
    InvalidName,
    PenstockError,
    error_classes,
)


def test_every_error_has_a_condition() -> None:
    assert penstock.Event is not None  # whose modules have errors of their own
    assert set(CONDITIONS) == set(error_classes())


def test_an_error_is_told_with_its_code() -> None:
    error = CapacityReached("10 of 10")

    assert condition_of(error) == "amqp:resource-limit-exceeded"
    assert description_of(error) == "capacity-reached: 10 of 10"
    assert condition_of(PenstockError("?")) == "amqp:internal-error"


def test_an_address_may_say_what_it_is() -> None:
    assert parse_address("topic://a/b", None) == ("a/b", "channel")
    assert parse_address("queue://a", None) == ("a", "queue")
    assert parse_address("a", "channel") == ("a", "channel")
    assert parse_address("topic:/a", None) == ("topic:/a", None), "one slash: a name as any other"
    with pytest.raises(InvalidName):
        parse_address("topic://a/*", None)


def test_names_of_durables_do_not_meet() -> None:
    names = [
        durable_name_of(client, name, volatile=volatile)
        for client, name, volatile in (
            ("a", "b:c", False),
            ("a:b", "c", False),
            ("", "a:b:c", False),
            ("a", "b", False),
            ("a", "b", True),
            ("a", "b@volatile", False),
            ("a", "ž #", False),
        )
    ]

    assert len({*names}) == len(names)
    assert names[3:5] == ["a:b", "a:b@volatile"]
    assert names[-1] == "a:#c5#be#20#23"
    for client, name in (("a", ""), ("a", "b" * 300)):
        with pytest.raises(InvalidName):
            durable_name_of(client, name, volatile=False)
