"""Error texts speak of the user's argument, not of our rules or of a decoder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.weight.source import statements
from tests.tidy.parsing import tree_of

ROOT = Path(__file__).resolve().parents[2]
INSIDE = re.compile(r"\bSEM [A-Z]|Expected `|\$\.")
"""Rule numbers, and the words of msgspec."""


def raised(source: str) -> Iterator[str]:
    """The texts that stand in a ``raise``."""
    for node in statements(tree_of(source)) if "raise" in source else ():
        if isinstance(node, ast.Raise):
            yield from (
                part.value
                for part in ast.walk(node)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def test_no_error_cites_a_rule_or_a_decoder() -> None:
    messages = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        for text in raised(path.read_text(encoding="utf-8"))
        if INSIDE.search(text)
    ]

    assert messages == []


@pytest.mark.parametrize(
    "source",
    [
        'raise E("take serial (SEM D11)")',
        'raise E(f"{x}: Expected `int` at")',
        'raise E("$.a is 1")',
    ],
)
def test_what_cites_one_is_found(source: str) -> None:
    assert [text for text in raised(source) if INSIDE.search(text)]
