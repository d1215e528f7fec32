"""Recorded traces of simulated lives."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).parent / "traces.txt"


def recorded() -> dict[int, str]:
    """The hash of each recorded seed's trace."""
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    return {int(seed): trace for seed, trace in map(str.split, lines)}
