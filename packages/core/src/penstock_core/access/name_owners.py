"""Producers, stages and transactions have names that clients choose, and that belong to their user.

If the realm knows its users, such a name is stored together with the user, so that nobody can use,
answer or end another user's, whatever name they guess. Names stored by a realm without
authentication have no owner: every user finds them, and nobody can take them over.
"""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

MARK: Final = "\x1f"
"""Between a name and its owner; in no name."""

CONTENT_MARK: Final = "\x1e"
"""Between a producer's name and what identifies the content of the publish: ``txn:<query>`` stores
the micro-batch 7 of the offsets 10 to 20 as ``txn:<query>\x1e<digest of these offsets>``. Facts and
snapshots have such names, which a realm of an earlier version reads as names like any other."""


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


def without_content(name: str) -> tuple[str, str]:
    """The name of a producer with its owner, and the identity of the content."""
    front, _, rest = name.partition(CONTENT_MARK)
    content, mark, owner = rest.partition(MARK)
    return f"{front}{mark}{owner}", content


def with_content(name: str, content: str) -> str:
    """A producer's name with the identity of what it publishes; the name alone without one."""
    if not content:
        return name
    front, mark, owner = name.partition(MARK)
    return f"{front}{CONTENT_MARK}{content}{mark}{owner}"
