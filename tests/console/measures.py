"""Measurements on a page of the console, and the widths of narrow screens."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
FAINT, UNNAMED, SHIFTS = (
    (_HERE / f"{name}.js").read_text() for name in ("faint", "unnamed", "shifts")
)
NARROW = (320, 640)
WIDE = """
() => { const main = document.querySelector("main"); return main.scrollWidth - main.clientWidth; }
"""
