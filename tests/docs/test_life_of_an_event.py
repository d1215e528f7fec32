"""The map must match the land: every name the guide to publishing cites exists."""

from __future__ import annotations

import pkgutil
import re

import pytest

from penstock_core.channel import publish
from scripts.weight.publish import trip_of_a_publish

CITED = re.findall(r"``((?:\w+\.)+\w+)``", publish.__doc__ or "")


def test_the_guide_cites_its_steps() -> None:
    steps = re.findall(r"^\d+\.", publish.__doc__ or "", re.MULTILINE)

    assert len(CITED) >= 8
    assert len(steps) >= 8


@pytest.mark.parametrize("name", CITED)
def test_a_cited_name_exists(name: str) -> None:
    pkgutil.resolve_name(name)


def test_a_publish_passes_what_the_guide_names_in_its_order() -> None:
    expected: list[str] = []
    rare: list[str] = []
    for step in re.split(r"^\d+\. ", publish.__doc__ or "", flags=re.MULTILINE)[1:]:
        always, _, sometimes = " ".join(step.split()).partition("Only some:")
        expected += _cited(always)
        rare += _cited(sometimes)
    trip = trip_of_a_publish(warming=5, measured=3)
    realm = [_name(*call) for calls in trip.calls for call in calls]

    assert len(expected) >= 15
    assert len(rare) >= 8
    position = 0
    for name in expected:
        assert name in realm[position:], f"{name} is not passed after {realm[position - 1]}"
        position = realm.index(name, position) + 1
    assert not set(rare) & set(realm)


def _cited(text: str) -> list[str]:
    return re.findall(r"``((?:\w+\.)+\w+)``", text)


def _name(file: str, function: str) -> str:
    return f"{file.removesuffix('.py').replace('/', '.')}.{function}"
