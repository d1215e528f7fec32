"""Deprecated types are types that there are."""

from __future__ import annotations

from penstock.bootstrap import rules
from penstock.core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES


def test_deprecated_types_are_some_of_the_types_there_are() -> None:
    assert rules().types.keys() > DEPRECATED_CHANNELS
    assert rules().kinds.keys() > DEPRECATED_DURABLES
