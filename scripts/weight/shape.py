"""Measures of the text of modules: lines, names, and the imports between the parts of a package.

A *room* is a part of a package: a module or folder directly in it. An *arrow* is an import of one
room by another.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from scripts.weight.source import Source, documentation, importers, mentions, statements

FRAGMENT_LINES = 80
"""A module with fewer lines and a single importer counts as a fragment of that importer."""
_INNER_COROUTINE = re.compile(r"^[ \t]+async def ", re.MULTILINE)
OPENINGS = ("The same", "Of ", "Those ")
"""Beginnings of docstrings that can only be understood together with a neighbouring one."""


class Lines(NamedTuple):
    """The number of lines of all files, and of each kind of line."""

    total: int
    imports: int
    documentation: int
    comments: int
    """Lines with nothing but a comment."""
    blank: int


def lines_of(sources: Sequence[Source]) -> Lines:
    """Count the lines of each kind. A blank line in a docstring counts as documentation."""
    total = imports = documented = comments = blank = 0
    for source in sources:
        lines = source.text.splitlines()
        texts = {
            number
            for node in documentation(source.tree)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        strings = _lines_in_strings(source.tree)
        total += len(lines)
        documented += len(texts)
        imports += sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in statements(source.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        for number, line in enumerate(lines, 1):
            if number not in texts and number not in strings:
                blank += not line.strip()
                comments += line.lstrip().startswith("#")
    return Lines(total, imports, documented, comments=comments, blank=blank)


def _lines_in_strings(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that continue a string, so that a ``#`` in it is not a
    comment."""
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for number in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    }


def median_of(numbers: Iterable[int]) -> int:
    """Return the median, rounded down; 0 without numbers."""
    return int(median(values)) if (values := list(numbers)) else 0


def function_lines(sources: Sequence[Source]) -> list[int]:
    """Return the number of lines of every function, without its decorators."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources
        for node in statements(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def modules_with(sources: Sequence[Source], word: str) -> list[str]:
    """Return the names of the modules whose code has this word."""
    return [source.module for source in sources if mentions(source, word)]


def repeated_classes(sources: Sequence[Source]) -> Mapping[str, list[str]]:
    """Return each class name that several modules define, with these modules.

    Generated modules are left out, because their classes have the names of their originals.
    """
    modules_by_class: dict[str, list[str]] = {}
    for source in sources:
        if source.is_generated:
            continue
        for node in statements(source.tree):
            if isinstance(node, ast.ClassDef):
                modules_by_class.setdefault(node.name, []).append(source.module)
    return {name: modules for name, modules in sorted(modules_by_class.items()) if len(modules) > 1}


def fragments(sources: Sequence[Source]) -> Mapping[str, str]:
    """Return the short modules that only one other module imports, each with that module."""
    users = importers(sources)
    return {
        source.module: min(users[source.module])
        for source in sources
        if not source.is_package
        and source.lines < FRAGMENT_LINES
        and len(users[source.module]) == 1
    }


def openings(sources: Sequence[Source]) -> Counter[str]:
    """Count the docstrings that begin with each of :data:`OPENINGS`."""
    return Counter(
        opening
        for source in sources
        for node in documentation(source.tree)
        for opening in OPENINGS
        if str(node.value).lstrip().startswith(opening)
    )


def new_types(sources: Sequence[Source]) -> int:
    """Count the definitions of ``NewType``."""
    return sum(len(re.findall(r"= NewType\(", source.text)) for source in sources)


def tree_if_it_wraps(text: str) -> ast.Module:
    """Return the syntax tree of a file that may define a coroutine inside of a function; for any
    other file an empty tree, because parsing all tests takes twice as long as everything else."""
    return ast.parse(text if _INNER_COROUTINE.search(text) else "")


def wrapped_stories(tests: Sequence[Source]) -> list[str]:
    """Return the tests that define a coroutine and run it, instead of being coroutines themselves:
    ``async def life(): ...`` and then ``run(life())``.

    Calls with arguments do not count, because such a coroutine may run several times.
    """
    return [
        f"{source.module}.{node.name}"
        for source in tests
        for node in statements(source.tree)
        if isinstance(node, ast.FunctionDef) and _runs_its_own(node)
    ]


def _runs_its_own(function: ast.FunctionDef) -> bool:
    """Return whether a function runs a coroutine that it defines, without arguments."""
    inner = {node.name for node in function.body if isinstance(node, ast.AsyncFunctionDef)}
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args)
    return bool(inner) and any(
        ast.unparse(call.func).rpartition(".")[2] in ("run", "simulate")
        and isinstance(made := call.args[0], ast.Call)
        and isinstance(made.func, ast.Name)
        and made.func.id in inner
        and not (made.args or made.keywords)
        for call in calls
    )


class Rooms(NamedTuple):
    """The rooms of a package, and the imports between them."""

    rooms: frozenset[str]
    """Names of the rooms that import another room or are imported by one."""
    arrows: frozenset[tuple[str, str]]
    """Pairs of an importing and an imported room."""

    def back(self) -> list[tuple[str, str]]:
        """Return the arrows that point backwards in an order of the rooms that has few of them. The
        result is empty if the imports have no cycle."""
        places = {room: place for place, room in enumerate(_in_order(set(self.rooms), self.arrows))}
        return sorted((user, used) for user, used in self.arrows if places[user] > places[used])


def rooms_of(sources: Sequence[Source], package: str) -> Rooms:
    """Return the rooms of a package, its modules and folders, with the imports between them."""
    users = importers(sources)

    def room(module: str) -> str:
        return module.removeprefix(package).strip(".").partition(".")[0]

    inside = [name for name in users if name.startswith(f"{package}.")]
    arrows = frozenset(
        (room(user), room(used))
        for used in inside
        for user in users[used]
        if user in inside and room(user) != room(used)
    )
    return Rooms(frozenset(name for arrow in arrows for name in arrow), arrows)


def _in_order(rooms: set[str], arrows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the rooms ordered from importing to imported ones, with few arrows backwards (the
    heuristic of Eades, Lin and Smyth)."""
    remaining_rooms, remaining_arrows = set(rooms), set(arrows)
    first: list[str] = []
    last: list[str] = []
    while remaining_rooms:
        uses = Counter(user for user, _ in remaining_arrows)
        users = Counter(used for _, used in remaining_arrows)
        if sinks := [room for room in remaining_rooms if not uses[room]]:
            room = min(sinks)
            last.append(room)
        else:
            room = min(remaining_rooms, key=lambda name: (users[name] - uses[name], name))
            first.append(room)
        remaining_rooms.remove(room)
        remaining_arrows = {arrow for arrow in remaining_arrows if room not in arrow}
    return first + last[::-1]
