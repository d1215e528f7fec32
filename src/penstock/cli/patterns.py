"""Patterns on the command line (SEM D21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.vocabulary.choice import is_pattern
from penstock.core.vocabulary.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session


def means_several(realm: Session, name: str) -> bool:
    """Whether it is a pattern or a list, and not a channel that is called just that."""
    if not (is_pattern(name) or "," in name):
        return False
    try:
        realm.channels.get(name)
    except PenstockError:  # no such channel, or no such name
        return True
    return False
