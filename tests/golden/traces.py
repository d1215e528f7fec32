"""Recorded traces of simulated runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).parent / "traces.txt"


def recorded() -> dict[int, str]:
    """Return the hash of the recorded trace of each seed."""
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    return {int(seed): trace for seed, trace in map(str.split, lines)}
