"""Ownership of names that clients choose: of producers, stages and transactions.

In a realm with authentication such a name is stored together with its user, so that a user who
guesses the name of another user's object can neither use nor end it. Names stored by a realm
without authentication have no owner: every user can use them, and no user can take them over.
"""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

MARK: Final = "\x1f"
"""Separates a name and its owner; names do not contain it."""

CONTENT_MARK: Final = "\x1e"
"""Separates a producer's name from a digest of what it published. A query publishes the
micro-batch of the offsets 10 to 20 as ``txn:<query>\x1e<digest of these offsets>``. Facts and
snapshots contain such names; earlier versions read them as ordinary names."""


def owned(name: str, user: str) -> str:
    """Return ``name`` as a name of ``user``, or unchanged if ``user`` is empty. Raises
    ``InvalidArgument`` if the name contains the separator."""
    if MARK in name:
        raise InvalidArgument(f"{name.replace(MARK, '?')!r} has a control character; leave it out")
    return f"{name}{MARK}{user}" if name and user else name


def plain(name: str) -> str:
    """Return the name without its owner, as the client knows it."""
    return name.partition(MARK)[0]


def owner_of(name: str) -> str:
    """Return the user that owns a name; empty if the name has no owner."""
    return name.partition(MARK)[2]


def split_content(name: str) -> tuple[str, str]:
    """Split a producer's stored name into the name with its owner, and the digest of the published
    content; the digest is empty if the name has none."""
    front, _, content_and_owner = name.partition(CONTENT_MARK)
    content, mark, owner = content_and_owner.partition(MARK)
    return f"{front}{mark}{owner}", content


def with_content(name: str, content: str) -> str:
    """Return a producer's name with ``content``, the digest of the published content; the name
    unchanged if ``content`` is empty."""
    if not content:
        return name
    front, mark, owner = name.partition(MARK)
    return f"{front}{CONTENT_MARK}{content}{mark}{owner}"
