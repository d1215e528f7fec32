"""Modules that texts name: a program in a string, a page, a comment. None moves without them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
IMPORTED = re.compile(r"\b(?:from|import)\s+(penstock(?:\.[a-z_][a-z0-9_]*)+)")
"""An import, wherever it stands: linters see only those of the file itself."""
INVENTED = {"tests/tidy/test_weight.py"}
"""Files with trees of their own making."""


def _is_there(module: str) -> bool:
    """Whether it is a module or package; the last word may be a name in one."""
    places = [SOURCE.joinpath(*module.split("."))]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def test_every_module_that_is_imported_in_a_text_is_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    named = {
        (name, found)
        for name in listed
        if name not in INVENTED
        for found in IMPORTED.findall((ROOT / name).read_text(encoding="utf-8"))
    }

    assert len(named) > 1000, "the pattern finds none any more"
    assert sorted(each for each in named if not _is_there(each[1])) == []
