"""Every deprecated type exists."""

from __future__ import annotations

from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES
from penstock_server.bootstrap import rules


def test_deprecated_types_are_some_of_the_types_there_are() -> None:
    assert rules().types.keys() > DEPRECATED_CHANNELS
    assert rules().kinds.keys() > DEPRECATED_DURABLES
