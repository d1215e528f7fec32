"""Attributes of durables are passed on unchanged, and bounded in requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.durable_attributes import (
    DURABLE_DEFAULTS,
    DurableAttributes,
    GivenDurableAttributes,
)


def converted(**attributes: Any) -> GivenDurableAttributes:
    return msgspec.convert(attributes, GivenDurableAttributes)


def test_what_comes_from_outside_has_the_same_attributes_and_defaults() -> None:
    names = DurableAttributes.__struct_fields__

    assert GivenDurableAttributes.__struct_fields__ == names
    assert [getattr(converted(), name) for name in names] == [
        getattr(DURABLE_DEFAULTS, name) for name in names
    ]


def test_a_durable_without_attributes_lets_events_come_again_at_once_and_clients_take_long() -> (
    None
):
    assert (DURABLE_DEFAULTS.backoff, DURABLE_DEFAULTS.ack_timeout) == (None, 0)
    assert converted(backoff={"first": 5}).backoff == Backoff(5)


@pytest.mark.parametrize(
    "attributes", [{"max_deliveries": -1}, {"ack_timeout": -1}, {"order_by": "k" * 5_000}]
)
def test_what_comes_from_outside_is_bounded(attributes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        converted(**attributes)
