"""Measures of what is written: lines, names, rooms and the arrows between them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from scripts.weight.source import Source, documentation, importers, mentions, statements

FRAGMENT_LINES = 80
"""A module below this with a single importer is a fragment of that importer."""
_INNER_COROUTINE = re.compile(r"^[ \t]+async def ", re.MULTILINE)
OPENINGS = ("The same", "Of ", "Those ")
"""How a docstring begins that needs its neighbour to be understood."""


class Lines(NamedTuple):
    """The lines of all files, and how many of them are of each kind."""

    total: int
    imports: int
    documentation: int
    comments: int
    """Lines with nothing but a comment."""
    blank: int


def lines_of(sources: Sequence[Source]) -> Lines:
    """How many lines there are; a blank line in a docstring belongs to the docstring."""
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
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for number in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    }


def median_of(numbers: Iterable[int]) -> int:
    return int(median(found)) if (found := list(numbers)) else 0


def function_lines(sources: Sequence[Source]) -> list[int]:
    """The length of every function, without its decorators."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources
        for node in statements(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def modules_with(sources: Sequence[Source], word: str) -> list[str]:
    """The modules whose code has this word."""
    return [source.module for source in sources if mentions(source, word)]


def repeated_classes(sources: Sequence[Source]) -> Mapping[str, list[str]]:
    """Each class name that is used more than once, with the modules that use it.

    Generated modules do not count: what they have is one thing with what they were made from.
    """
    found: dict[str, list[str]] = {}
    for source in sources:
        if source.is_generated:
            continue
        for node in statements(source.tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(source.module)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def fragments(sources: Sequence[Source]) -> Mapping[str, str]:
    """Short modules that a single other one imports, with that one."""
    users = importers(sources)
    return {
        source.module: min(users[source.module])
        for source in sources
        if not source.is_package
        and source.lines < FRAGMENT_LINES
        and len(users[source.module]) == 1
    }


def openings(sources: Sequence[Source]) -> Counter[str]:
    """How many docstrings begin with each of the openings."""
    return Counter(
        opening
        for source in sources
        for node in documentation(source.tree)
        for opening in OPENINGS
        if str(node.value).lstrip().startswith(opening)
    )


def new_types(sources: Sequence[Source]) -> int:
    return sum(len(re.findall(r"= NewType\(", source.text)) for source in sources)


def tree_if_it_wraps(text: str) -> ast.Module:
    """The tree of a file in which a coroutine may be defined inside of a function, else an empty
    one: to parse all tests takes twice as long as everything else."""
    return ast.parse(text if _INNER_COROUTINE.search(text) else "")


def wrapped_stories(tests: Sequence[Source]) -> list[str]:
    """Tests that define a coroutine and hand it to a function that runs it, instead of being one:
    ``async def life(): ...`` and then ``run(life())``. One that is run again and again, each time
    with another argument, is none of them."""
    return [
        f"{source.module}.{node.name}"
        for source in tests
        for node in statements(source.tree)
        if isinstance(node, ast.FunctionDef) and _runs_its_own(node)
    ]


def _runs_its_own(function: ast.FunctionDef) -> bool:
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
    """The parts of a package, and which imports which."""

    rooms: frozenset[str]
    """Its sub-packages and own modules, if they import one another at all."""
    arrows: frozenset[tuple[str, str]]
    """From the one that imports to the one that is imported."""

    def back(self) -> list[tuple[str, str]]:
        """Arrows that point up, with the rooms in the order that leaves few of them; none where no
        rooms import one another in a circle."""
        place = {room: at for at, room in enumerate(_in_order(set(self.rooms), self.arrows))}
        return sorted((user, used) for user, used in self.arrows if place[user] > place[used])


def rooms_of(sources: Sequence[Source], package: str) -> Rooms:
    """The rooms of a package. A room is whatever lies in it directly, a folder or a module."""
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
    """The rooms from those that use to those that are used (Eades, Lin and Smyth's order)."""
    left, kept = set(rooms), set(arrows)
    first: list[str] = []
    last: list[str] = []
    while left:
        using, used = Counter(user for user, _ in kept), Counter(used for _, used in kept)
        if ends := [room for room in left if not using[room]]:
            room = min(ends)
            last.append(room)
        else:
            room = min(left, key=lambda each: (used[each] - using[each], each))
            first.append(room)
        left.remove(room)
        kept = {arrow for arrow in kept if room not in arrow}
    return first + last[::-1]
