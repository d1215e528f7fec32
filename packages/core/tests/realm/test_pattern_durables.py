"""The realm's table of durables over patterns."""

from __future__ import annotations

import pytest

from penstock_core.messages.pattern_durables import (
    PatternDurable,
    PatternDurableCreated,
    PatternDurableDeleted,
)
from penstock_core.realm.directory import Directory
from penstock_core.realm.pattern_durables import (
    PatternTable,
    refuse_difference,
    rehearsed,
    terms_of,
)
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_server.bootstrap import rules

pytestmark = pytest.mark.spec("D22")

BILLING = PatternDurable("orders/*", "billing", "serial")


def table(*made: PatternDurable) -> PatternTable:
    patterns = PatternTable()
    for record in made:
        patterns.add(record)
    return patterns


def test_a_pattern_takes_channels_that_stay_and_no_queues() -> None:
    assert BILLING.takes("orders/eu")
    assert not BILLING.takes("orders/eu", "queue")
    assert not BILLING.takes("orders/eu", "schedule")
    assert not BILLING.takes("orders/eu/west")
    assert not PatternDurable("**", "d", "shared").takes("temp-topic-" + "0" * 32)


def test_a_channel_has_each_name_once_whatever_the_number_of_patterns() -> None:
    patterns = table(BILLING, PatternDurable("*/eu", "billing", "serial"))

    assert [pattern.name for pattern in patterns.applying_to("orders/eu")] == ["billing"]
    assert patterns.applying_to("trades") == []
    assert len(patterns) == 2


def test_facts_make_and_end_one() -> None:
    directory = Directory(rules())
    directory.apply(PatternDurableCreated(BILLING))
    assert list(directory.patterns) == [BILLING]
    with pytest.raises(IllegalState, match=r"belongs to the pattern orders/\*"):
        directory.patterns.refuse_removal("orders/eu", "billing")
    directory.patterns.refuse_removal("orders/eu", "other")
    directory.patterns.refuse_removal("trades", "billing")

    directory.apply(PatternDurableDeleted("orders/*", "billing"))

    assert list(directory.patterns) == []
    with pytest.raises(NameDoesNotExist, match="over the pattern"):
        directory.patterns.get("orders/*", "billing")


def test_it_is_kept_in_canonical_form_and_found_by_any() -> None:
    wanted = PatternTable().checked(PatternDurable(" eu/**, /orders/*", "billing", "serial"))

    assert wanted.pattern == "eu/**, orders/*"
    assert table(wanted).get("orders/*,eu/**", "billing") == wanted


def test_what_is_no_pattern_or_there_already_or_another_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="names channels and is not a pattern"):
        PatternTable().checked(PatternDurable("orders", "d", "shared"))
    with pytest.raises(NameAlreadyBound, match="already exists"):
        table(BILLING).checked(BILLING)
    with pytest.raises(NameAlreadyBound, match="has other attributes"):
        table(BILLING).checked(PatternDurable("a/*", "billing", "shared"))
    same = PatternDurable("a/*", "billing", "serial")
    assert table(BILLING).checked(same) == same


def test_what_cannot_be_on_a_channel_is_said_with_the_pattern() -> None:
    limited = PatternDurable("a/*", "d", "shared", attributes=DurableAttributes(max_deliveries=3))

    with pytest.raises(InvalidArgument, match=r"durable d of the pattern a/\* cannot be on a/1"):
        rehearsed([limited], "a/1", Definition(), rules=rules())
    made = rehearsed([limited], "a/1", Definition(dead_event_store="dead"), rules=rules())
    assert made["d"].attributes.max_deliveries == 3


def test_another_durable_of_the_name_is_told_by_what_differs() -> None:
    definition = Definition()
    (durable_terms,) = rehearsed(
        [PatternDurable("a", "billing", "shared")], "a", definition, rules=rules()
    ).values()
    (would,) = rehearsed([BILLING], "a", definition, rules=rules()).values()

    with pytest.raises(NameAlreadyBound, match="type is 'shared', not 'serial'; delete it there"):
        refuse_difference(BILLING, "a", terms_of(durable_terms), would=terms_of(would))
    refuse_difference(BILLING, "a", terms_of(would), would=terms_of(would))
