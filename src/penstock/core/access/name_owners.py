"""Producers, stages and transactions have names that clients choose, and that belong to their user.

If the realm knows its users, such a name is stored together with the user, so that nobody can use,
answer or end another user's, whatever name they guess. Names stored by a realm without
authentication have no owner: every user finds them, and nobody can take them over.
"""

from __future__ import annotations

from typing import Final

from penstock.core.vocabulary.errors import InvalidArgument

MARK: Final = "\x1f"
"""Between a name and its owner; in no name."""


def owned(name: str, user: str) -> str:
    """``name`` as that of ``user``; without one, as it is. Raises ``InvalidArgument``."""
    if MARK in name:
        raise InvalidArgument(f"{name.replace(MARK, '?')!r} has a control character; leave it out")
    return f"{name}{MARK}{user}" if name and user else name


def plain(name: str) -> str:
    """The name as its client knows it."""
    return name.partition(MARK)[0]


def owner_of(name: str) -> str:
    """The user that a name belongs to; empty: none."""
    return name.partition(MARK)[2]
