"""The table of attributes against what a definition really has."""

from __future__ import annotations

import pytest

from penstock_core.api.requests import Kind
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_server.bootstrap import rules
from penstock_server.cli.stores.attributes import (
    ATTRIBUTES,
    OF_DURABLES,
    attributes_of,
    durable_type_shown,
)

EVERY = set(Definition.__struct_fields__) | set(Storage.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("channel", {"kind", "storage", "max_deliveries", "backoff"}),
        ("queue", {"kind", "storage", "engine", "retain_consumed", "archive", "topics", "payload"}),
    ],
)
def test_every_attribute_has_an_option(kind: Kind, others: set[str]) -> None:
    assert {attribute.name for attribute in attributes_of(kind, new=True)} == EVERY - others


@pytest.mark.spec("C3")
def test_edit_has_all_attributes_that_are_not_fixed() -> None:
    new, old = (
        {attribute.name for attribute in attributes_of("channel", new=is_new)}
        for is_new in (True, False)
    )

    assert new - old == {"type", "engine", "keys", "start_event_id"}


def test_storage_properties_are_separated_from_the_others() -> None:
    in_storage = {attribute.name for attribute in ATTRIBUTES if attribute.in_storage}

    assert in_storage == set(Storage.__struct_fields__)


def test_the_help_names_every_type_and_which_are_deprecated() -> None:
    types = rules().types
    (option,) = next(
        attribute for attribute in ATTRIBUTES if attribute.name == "type"
    ).option.__metadata__
    current, _, deprecated = option.help.partition("deprecated:")

    assert types.keys() >= DEPRECATED_CHANNELS
    assert all(name in deprecated for name in DEPRECATED_CHANNELS)
    assert all(name in current for name in types if name not in DEPRECATED_CHANNELS)


def test_every_attribute_of_a_durable_has_an_option() -> None:
    assert tuple(attribute.name for attribute in OF_DURABLES) == DurableAttributes.__struct_fields__


def test_deprecated_types_of_durables_are_types_and_are_marked() -> None:
    kinds = rules().kinds

    assert kinds.keys() > DEPRECATED_DURABLES
    assert [name for name in kinds if "deprecated" in durable_type_shown(name)] == sorted(
        DEPRECATED_DURABLES
    )
