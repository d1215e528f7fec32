"""``python -m scripts.weight [--all] [--walk]``: sizes of packages, and figures with their targets.

``python -m scripts.weight --record [PACKAGE ... --reason TEXT]`` renews `recorded.toml`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.packages import packages
from scripts.weight import growth, shape
from scripts.weight.sizes import size_table, statements_by_package
from scripts.weight.source import Source, sources_below, statement_count, workspace_sources

ROOT = Path(__file__).parents[2]
ROOMY = "penstock_server.runtime"
"""The package whose parts ("rooms") and their imports are counted."""

ATTRIBUTES = ("strict_order", "order_by", "max_deliveries", "cluster_wide", "deliver_at")
"""Four attributes of durables and one of events. The number of files that mention an attribute
shows how many files a new attribute changes."""


class Figure(NamedTuple):
    """A line of the table."""

    name: str
    value: str
    target: str = ""
    items: Sequence[str] = ()
    """The counted items, listed below the table."""
    is_long: bool = False
    """Whether the list is printed only with ``--all``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the lists behind them, or renew the record. Return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if bool(options.record) != bool(options.reason.strip()):
        parser.error("--record PACKAGE ... and --reason TEXT need each other")
    if options.record is not None:
        return renew_record(
            options.root, options.record, growth_reason=options.reason, path=options.record_file
        )
    print(*size_table(workspace_sources(options.root)), sep="\n", end="\n\n")
    figures = list(written(options.root))
    if not options.still:
        figures += driven(walking=options.walk)
    width = max(len(figure.name) for figure in figures)
    print(f"{'figure':{width}}  {'value':>13}  target")
    for figure in figures:
        print(f"{figure.name:{width}}  {figure.value:>13}  {figure.target}".rstrip())
    for figure in figures:
        if figure.items and (options.all or not figure.is_long):
            print(f"\n{figure.name}:", *figure.items, sep="\n  ")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m scripts.weight",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to measure")
    parser.add_argument("--all", action="store_true", help="every list, also the long ones")
    parser.add_argument("--still", action="store_true", help="run nothing: no publish is measured")
    parser.add_argument("--walk", action="store_true", help="the calls of the publish, in order")
    parser.add_argument(
        "--record",
        nargs="*",
        choices=tuple(packages()),
        metavar="PACKAGE",
        help="lower the record of packages that became smaller, or raise that of these packages",
    )
    parser.add_argument(
        "--record-file", type=Path, default=growth.RECORD, help="the file that --record renews"
    )
    parser.add_argument("--reason", default="", help="why the packages of --record grew")
    return parser


def renew_record(root: Path, names: Sequence[str], *, growth_reason: str, path: Path) -> int:
    """Write the record to `path`; print its changes and faults. Return the exit status."""
    statements = statements_by_package(workspace_sources(root))
    before = growth.read_record(path)
    if names:
        record = growth.raised(statements, before, names, growth_reason)
    else:
        record = growth.lowered(statements, before)
    path.write_text(growth.render(record), encoding="utf-8")
    for package, entry in record.items():
        if package not in before:
            print(f"{package}: {entry.statements:,} statements")
        elif entry.statements != before[package].statements:
            print(f"{package}: {before[package].statements:,} -> {entry.statements:,} statements")
    faults = list(growth.faults(statements, record))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def written(root: Path) -> Iterator[Figure]:
    """Yield the figures that are measured in the text of the files."""
    sources = workspace_sources(root)
    yield from _sizes(sources)
    for word in ATTRIBUTES:
        modules = shape.modules_with(sources, word)
        yield Figure(f"files with {word}", f"{len(modules)}", "9", items=modules)
    rooms = shape.rooms_of(sources, ROOMY)
    back = [f"{user} imports {used}" for user, used in rooms.back()]
    yield Figure(
        f"rooms of {ROOMY}", f"{len(rooms.rooms)}", "10", items=sorted(rooms.rooms), is_long=True
    )
    yield Figure("arrows between them", f"{len(rooms.arrows)}")
    yield Figure("arrows back", f"{len(back)}", "0", items=back)
    twice = shape.repeated_classes(sources)
    names = [f"{name}: {', '.join(modules)}" for name, modules in twice.items()]
    yield Figure("class names used twice", f"{len(twice)}", "", items=names, is_long=True)
    small = [f"{part} of {user}" for part, user in shape.fragments(sources).items()]
    yield Figure(
        f"fragments (one importer, < {shape.FRAGMENT_LINES} lines)",
        f"{len(small)}",
        "",
        items=small,
        is_long=True,
    )
    begun = shape.openings(sources)
    for opening in shape.OPENINGS:
        yield Figure(f"docstrings that begin {opening.strip()!r}", f"{begun[opening]}", "0")
    yield Figure("NewType", f"{shape.new_types(sources)}")
    stories = shape.wrapped_stories(
        [
            source
            for folder in (*sorted(root.glob("packages/*/tests")), root / "tests")
            for source in sources_below(folder, shape.tree_if_it_wraps)
        ]
    )
    yield Figure(
        "tests that wrap and run a coroutine", f"{len(stories)}", "0", items=stories, is_long=True
    )


def _sizes(sources: Sequence[Source]) -> Iterator[Figure]:
    lines, lengths = shape.lines_of(sources), [source.lines for source in sources]
    yield Figure("source lines", f"{lines.total:,}", "74,000")
    yield Figure("modules", f"{len(sources)}")
    yield Figure("module lines, median", f"{shape.median_of(lengths)}")
    largest = max((statement_count(source.tree) for source in sources), default=0)
    yield Figure("module statements, largest", f"{largest}", "400")
    functions = shape.function_lines(sources)
    yield Figure("function lines, median", f"{shape.median_of(functions)}")
    yield Figure("function lines, largest", f"{max(functions, default=0)}")
    for name, count in (
        ("import", lines.imports),
        ("docstring", lines.documentation),
        ("comment", lines.comments),
        ("blank", lines.blank),
    ):
        yield Figure(f"{name} lines", f"{count / max(lines.total, 1):.1%}")


def driven(*, walking: bool) -> Iterator[Figure]:
    """Yield the figures of one publish: client and realm together. With ``walking``, the first
    figure lists the calls."""
    from scripts.weight.publish import trip_of_a_publish, walk

    trip = trip_of_a_publish()
    walked: list[str] = []
    if walking:
        walk(trip, walked.append)
    yield Figure("calls of one publish", f"{trip.called}", "140", items=walked)
    yield Figure("moves between files of one publish", f"{trip.moves}", "100")
    yield Figure("files of one publish", f"{trip.files}")


if __name__ == "__main__":
    sys.exit(main())
