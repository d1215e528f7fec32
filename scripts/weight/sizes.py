"""Sizes of packages: statements, docstrings, comments and lines."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scripts.packages import package_of, packages
from scripts.weight.source import Source, documentation, statement_count


class Size(NamedTuple):
    """Sums over the modules of a package."""

    modules: int
    statements: int
    docstrings: int
    """Docstrings, also those of attributes."""
    docstring_lines: int
    comments: int
    """Lines with a comment, also behind code."""
    lines: int


def size_of(sources: Iterable[Source]) -> Size:
    """Measure the modules of a package."""
    return total_of(_module_size(source) for source in sources)


def _module_size(source: Source) -> Size:
    docstrings = list(documentation(source.tree))
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    return Size(
        modules=1,
        statements=statement_count(source.tree),
        docstrings=len(docstrings),
        docstring_lines=sum(
            (node.end_lineno or node.lineno) - node.lineno + 1 for node in docstrings
        ),
        comments=sum(token.type == tokenize.COMMENT for token in tokens),
        lines=source.lines,
    )


def total_of(sizes: Iterable[Size]) -> Size:
    """Add sizes up."""
    empty = Size._make(0 for _ in Size._fields)
    return Size._make(map(sum, zip(empty, *sizes, strict=True)))


def by_package(sources: Iterable[Source]) -> Mapping[str, Sequence[Source]]:
    """Return the modules of each package, in the order of `scripts/packages.toml`."""
    modules: dict[str, list[Source]] = {package: [] for package in packages()}
    for source in sources:
        modules[package_of(source.module)].append(source)
    return modules


def statements_by_package(sources: Iterable[Source]) -> Mapping[str, int]:
    """Return the number of statements of each package, the measure of its growth."""
    return {
        package: sum(statement_count(source.tree) for source in modules)
        for package, modules in by_package(sources).items()
    }


def size_table(sources: Iterable[Source]) -> Iterator[str]:
    """Yield the lines of a table with a row for each package and a row with the sums."""
    sizes = {package: size_of(modules) for package, modules in by_package(sources).items()}
    sizes["all packages"] = total_of(sizes.values())
    columns = [name.replace("_", " ") for name in Size._fields]
    width = max(map(len, sizes))
    yield "  ".join((f"{'package':{width}}", *(f"{column:>10}" for column in columns)))
    for package, size in sizes.items():
        cells = (
            f"{value:>{max(len(column), 10)},}" for column, value in zip(columns, size, strict=True)
        )
        yield "  ".join((f"{package:{width}}", *cells))
