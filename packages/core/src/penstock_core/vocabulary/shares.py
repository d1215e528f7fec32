"""The rule by which users, or channels, share what is bounded for all of them."""

from __future__ import annotations


def share_left(limit: int, used: int, own: int) -> int:
    """Return how much more one of several sharers may take; negative if it has too much.

    Each may have half of what the others leave, so that none keeps the others from taking anything.
    ``used`` is what all of them have, with the ``own`` part of this one.
    """
    return (limit - (used - own)) // 2 - own
