"""Print a sample of functions, docstrings and error texts of the packages, for a reader who does
not know them.

The same seed draws the same places from the same sources.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from scripts.prose import texts_of
from scripts.weight.source import Source, statements, workspace_sources

ROOT: Final = Path(__file__).resolve().parents[1]
COUNT: Final = 100
"""Default number of places in a sample."""
LINES_MAX: Final = 40
"""Maximum number of lines of a function that are printed."""


class Place(NamedTuple):
    """A function, a docstring or an error text."""

    path: Path
    line: int
    text: str


def places_in(source: Source) -> Iterator[Place]:
    """Yield the functions, docstrings and error texts of a module."""
    lines = source.text.splitlines()
    for node in statements(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = min(node.end_lineno or node.lineno, node.lineno + LINES_MAX)
            yield Place(source.path, node.lineno, "\n".join(lines[node.lineno - 1 : end]))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if " " in (error_text := _text_of(argument)):
                    yield Place(source.path, node.lineno, f"error: {error_text}")
    owners = _owners(source.tree, lines)
    for text in texts_of(source):
        if text.kind == "docstring":
            owner = owners.get(text.line, "module")
            yield Place(source.path, text.line, f"{owner}\n{text.words}")


def _text_of(argument: ast.expr) -> str:
    """Return an error text as one string, with the expressions in it in braces."""
    match argument:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text_of, parts))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case _:
            return ""


def _owners(tree: ast.Module, lines: Sequence[str]) -> dict[int, str]:
    """Return the code that each docstring of a module belongs to, by the line of the docstring: the
    whole signature of a function or class, or the assignment of an attribute, after its class."""
    owners: dict[int, str] = {}
    for node in statements(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        first = node.body[0] if node.body else None
        if first is not None and not isinstance(node, ast.Module):
            owners[first.lineno] = _code(lines, node.lineno, first.lineno - 1)
        owning_class = f"class {node.name}\n" if isinstance(node, ast.ClassDef) else ""
        for statement, text in pairwise(node.body):
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                end = statement.end_lineno or statement.lineno
                owners[text.lineno] = owning_class + _code(lines, statement.lineno, end)
    return owners


def _code(lines: Sequence[str], first: int, last: int) -> str:
    """Return the lines ``first`` to ``last``, counted from 1, without their common indent."""
    return textwrap.dedent("\n".join(lines[first - 1 : last])).strip()


def sample(sources: Sequence[Source], seed: int, count: int = COUNT) -> list[Place]:
    """Return ``count`` places drawn by ``seed``, in the order of files and lines."""
    places = [place for source in sources if not source.is_generated for place in places_in(source)]
    return sorted(random.Random(seed).sample(places, min(count, len(places))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sample of a seed. Return the exit status."""
    parser = argparse.ArgumentParser("python -m scripts.sample", description=__doc__)
    parser.add_argument("seed", type=int, help="1 to 100")
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args(arguments)
    for number, place in enumerate(sample(workspace_sources(ROOT), options.seed, options.count), 1):
        print(f"--- {number}. {place.path.relative_to(ROOT)}:{place.line}\n{place.text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
