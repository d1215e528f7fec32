"""The table of attributes against what a definition really has."""

from __future__ import annotations

import pytest

from penstock.api.requests import Kind
from penstock.bootstrap import rules
from penstock.cli.attributes import ATTRIBUTES, OF_DURABLES, attributes_of
from penstock.core.vocabulary.durable_attributes import DurableAttributes
from penstock.core.vocabulary.messages import (
    Definition,
    Storage,
)
from penstock.runtime.subscriptions.documents import DEPRECATED, DEPRECATED_DURABLES

EVERY = set(Definition.__struct_fields__) | set(Storage.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("channel", {"kind", "storage", "max_deliveries", "backoff"}),
        ("queue", {"kind", "storage", "engine", "retain_consumed", "archive", "topics", "payload"}),
    ],
)
def test_every_attribute_has_an_option(kind: Kind, others: set[str]) -> None:
    assert {each.name for each in attributes_of(kind, new=True)} == EVERY - others


@pytest.mark.spec("C3")
def test_edit_has_all_but_what_is_fixed() -> None:
    new, old = (
        {each.name for each in attributes_of("channel", new=is_new)} for is_new in (True, False)
    )

    assert new - old == {"type", "engine", "keys", "start_event_id"}


def test_storage_properties_are_told_from_the_others() -> None:
    in_storage = {each.name for each in ATTRIBUTES if each.in_storage}

    assert in_storage == set(Storage.__struct_fields__)


def test_the_help_names_every_type_and_which_are_deprecated() -> None:
    types = rules().types
    (option,) = next(each for each in ATTRIBUTES if each.name == "type").option.__metadata__
    current, _, deprecated = option.help.partition("deprecated:")

    assert {name for name, type in types.items() if type.deprecated} == DEPRECATED
    assert all(name in deprecated for name in DEPRECATED)
    assert all(name in current for name in types if name not in DEPRECATED)


def test_every_attribute_of_a_durable_has_an_option() -> None:
    assert tuple(each.name for each in OF_DURABLES) == DurableAttributes.__struct_fields__


def test_the_durable_types_that_are_marked_are_those_that_say_so() -> None:
    kinds = rules().kinds

    assert {name for name, kind in kinds.items() if kind.deprecated} == DEPRECATED_DURABLES
