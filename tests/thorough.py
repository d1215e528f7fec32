"""How many examples a property is tried with: all of them, or a share where time is short."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"
"""The profile of ``make check``: a quarter of the examples. ``make test`` tries them all."""


def examples(many: int) -> int:
    """So many, where the profile in use tries Hypothesis' own hundred; in proportion elsewhere."""
    return max(1, many * settings().max_examples // 100)
