"""The rule by which users, or channels, share a limit that applies to all of them together."""

from __future__ import annotations


def share_left(limit: int, used: int, own: int) -> int:
    """Return how much more one user or channel may use; negative if it uses too much already.

    Each may use half of what the others leave free, so that none can use up the limit alone.
    ``used`` is the use of all together, including ``own``.
    """
    return (limit - (used - own)) // 2 - own
