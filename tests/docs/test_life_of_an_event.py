"""The map must match the land: every name the guide to publishing cites exists."""

from __future__ import annotations

import pkgutil
import re

import pytest

from penstock.core.channel import publish

CITED = re.findall(r"``((?:\w+\.)+\w+)``", publish.__doc__ or "")


def test_the_guide_cites_its_steps() -> None:
    steps = re.findall(r"^\d+\.", publish.__doc__ or "", re.MULTILINE)

    assert len(CITED) >= 8
    assert len(steps) >= 8


@pytest.mark.parametrize("name", CITED)
def test_a_cited_name_exists(name: str) -> None:
    pkgutil.resolve_name(f"penstock.{name}")
