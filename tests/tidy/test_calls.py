"""What a call passes can be read where it stands: no literal tuple is unpacked into it, booleans
have their name, and so has what follows the third value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.tidy.parsing import parsed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("src", "bench", "examples", "scripts", "tests")
VALUES_MAX: Final = 3


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call, with where it stands."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


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
