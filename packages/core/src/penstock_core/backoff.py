"""Pauses between attempts."""

from __future__ import annotations

from typing import Final
from zlib import crc32

_DOUBLINGS_MAX: Final = 16
"""Maximum number of times that the first pause is doubled."""


def backoff_s(attempt: int, *, first_s: float, longest_s: float, seed: str) -> float:
    """Return the seconds to wait after the failed attempt number ``attempt``, counted from 0.

    The pause doubles with each attempt, from ``first_s`` up to ``longest_s``. Half of it depends on
    ``seed``, so that programs that failed at the same moment do not try again at the same moment.
    """
    pause_s = min(first_s * (1 << min(attempt, _DOUBLINGS_MAX)), longest_s)
    share = crc32(f"{seed}/{attempt}".encode()) / (1 << 32)
    return pause_s * (0.5 + share / 2)
