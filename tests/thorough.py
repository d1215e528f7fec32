"""The number of examples for a property test: all, or a part of them in a quick run."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"
"""The Hypothesis profile of ``make check``, with a quarter of the examples of ``make test``."""


def examples(many: int) -> int:
    """Return ``many`` if the profile in use has 100 examples (the default of Hypothesis), and in
    proportion for other profiles."""
    return max(1, many * settings().max_examples // 100)
