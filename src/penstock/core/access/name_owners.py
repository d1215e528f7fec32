"""Names that clients choose belong to their user: producers, stages and transactions.

Where the realm knows who asks, such a name is kept together with its user, so nobody takes up,
answers for or ends what is another's, whatever name it guesses. What a realm without
authentication has kept has no owner; it is found by every user, and taken up by none.
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
    """Whose it is; empty: nobody's in particular."""
    return name.partition(MARK)[2]
