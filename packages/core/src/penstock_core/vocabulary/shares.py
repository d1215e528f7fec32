"""The rule by which users, or channels, share a limit that applies to all of them together."""

from __future__ import annotations


def share_left(limit: int, used: int, own: int) -> int:
    """Return how much more one user or channel may use; negative if it uses too much already.

    ``own`` is its use so far, and ``used`` the use of all users or channels together, including
    ``own``. One of them may use half of the free part that the others leave, so that none can use
    up the limit alone.
    """
    return (limit - (used - own)) // 2 - own
