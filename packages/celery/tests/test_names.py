"""Every name of a queue has a name in the realm, and no two share one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_celery.names import Names
from penstock_core.vocabulary.names import destination_name
from tests.thorough import examples

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=18)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(queue=NAMES, priority=st.integers(0, 9))
def test_a_queue_keeps_its_name_on_the_way_through_the_realm(queue: str, priority: int) -> None:
    names = Names("shop")

    stored = names.queue(queue, priority)

    assert destination_name(stored) == stored
    assert names.kombu_queue(stored) == queue


@pytest.mark.parametrize(
    ("queue", "stored"),
    [
        ("celery", "celery"),
        ("w1@host-2.celery.pidbox", "w1@host-2.celery.pidbox"),
        ("a/b", "a%2Fb"),
        ("a::b", "a%3A%3Ab"),
        ("ärger", "%C3%A4rger"),
        (".", "%2E"),
        ("*", "%2A"),
        ("celery/priority-3", "celery%2Fpriority-3"),
        ("temp-queue-" + "0" * 32, "%74emp-queue-" + "0" * 32),
    ],
)
def test_characters_that_mean_something_to_the_realm_are_escaped(queue: str, stored: str) -> None:
    assert Names().queue(queue) == stored


def test_priorities_and_virtual_hosts_have_names_of_their_own() -> None:
    assert Names("/").queue("celery", 9) == "celery/priority-9"
    assert Names("shop/eu").queue("celery") == "shop%2Feu/celery"
    assert Names("shop").fanout("celery.pidbox") == "shop/kombu/fanout/celery.pidbox"
