"""What is passed can be read where it stands: no literal is unpacked where its items can stand."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from tests.tidy.parsing import parsed

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("src", "bench", "examples", "scripts", "tests")


def test_no_literal_is_unpacked() -> None:
    """``*("a", "b")`` says the same as ``"a", "b"``, and hides how many values there are."""
    starred = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
    ]

    assert starred == []
