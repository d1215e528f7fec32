"""``python -m scripts.weight [--all] [--walk]``: a table of figures with their targets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.weight import shape
from scripts.weight.source import Source, sources_below

ROOT = Path(__file__).parents[2]
PACKAGE = "penstock"
ROOMY = f"{PACKAGE}.runtime"

ATTRIBUTES = ("strict_order", "order_by", "max_deliveries", "cluster_wide", "deliver_at")
"""Four of a durable and one of an event: in how many files must a new one be written?"""


class Figure(NamedTuple):
    """A line of the table."""

    name: str
    value: str
    target: str = ""
    found: Sequence[str] = ()
    """What was counted, where somebody will want to look at it."""
    is_long: bool = False
    """Shown with ``--all`` only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the lists behind it. The exit status."""
    given = _parser().parse_args(arguments)
    figures = list(written(given.root))
    if not given.still:
        figures += driven(walking=given.walk)
    width = max(len(figure.name) for figure in figures)
    print(f"{'figure':{width}}  {'value':>13}  target")
    for figure in figures:
        print(f"{figure.name:{width}}  {figure.value:>13}  {figure.target}".rstrip())
    for figure in figures:
        if figure.found and (given.all or not figure.is_long):
            print(f"\n{figure.name}:", *figure.found, sep="\n  ")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m scripts.weight", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to measure")
    parser.add_argument("--all", action="store_true", help="every list, also the long ones")
    parser.add_argument("--still", action="store_true", help="run nothing: no publish is measured")
    parser.add_argument("--walk", action="store_true", help="the calls of the publish, in order")
    return parser


def written(root: Path) -> Iterator[Figure]:
    """What the files say."""
    sources = sources_below(root / "src")
    yield from _sizes(sources)
    for word in ATTRIBUTES:
        modules = shape.modules_with(sources, word)
        yield Figure(f"files with {word}", f"{len(modules)}", "9", found=modules)
    rooms = shape.rooms_of(sources, ROOMY)
    back = [f"{user} imports {used}" for user, used in rooms.back()]
    yield Figure(
        f"rooms of {ROOMY}", f"{len(rooms.rooms)}", "10", found=sorted(rooms.rooms), is_long=True
    )
    yield Figure("arrows between them", f"{len(rooms.arrows)}")
    yield Figure("arrows back", f"{len(back)}", "0", found=back)
    twice = shape.repeated_classes(sources)
    names = [f"{name}: {', '.join(modules)}" for name, modules in twice.items()]
    yield Figure("class names used twice", f"{len(twice)}", "", found=names, is_long=True)
    small = [f"{part} of {user}" for part, user in shape.fragments(sources).items()]
    yield Figure(
        f"fragments (one importer, < {shape.FRAGMENT_LINES} lines)",
        f"{len(small)}",
        "",
        found=small,
        is_long=True,
    )
    begun = shape.openings(sources)
    for opening in shape.OPENINGS:
        yield Figure(f"docstrings that begin {opening.strip()!r}", f"{begun[opening]}", "0")
    yield Figure("NewType", f"{shape.new_types(sources)}")
    stories = shape.wrapped_stories(sources_below(root / "tests", shape.tree_if_it_wraps))
    yield Figure(
        "tests that wrap and run a coroutine", f"{len(stories)}", "0", found=stories, is_long=True
    )


def _sizes(sources: Sequence[Source]) -> Iterator[Figure]:
    lines, lengths = shape.lines_of(sources), [source.lines for source in sources]
    yield Figure("source lines", f"{lines.total:,}", "74,000")
    yield Figure("modules", f"{len(sources)}")
    yield Figure("module lines, median", f"{shape.median_of(lengths)}")
    yield Figure("module lines, largest", f"{max(lengths, default=0)}", "600")
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
    """What one publish does, both sides together."""
    from scripts.weight.publish import trip_of_a_publish, walk

    trip = trip_of_a_publish()
    walked: list[str] = []
    if walking:
        walk(trip, walked.append)
    yield Figure("calls of one publish", f"{trip.called}", "140", found=walked)
    yield Figure("moves between files of one publish", f"{trip.moves}", "100")
    yield Figure("files of one publish", f"{trip.files}")


if __name__ == "__main__":
    sys.exit(main())
