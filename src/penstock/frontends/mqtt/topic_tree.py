"""Topic names by level: which of them a filter takes, found without a look at the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_Branch = dict[str, Any]
"""What follows a level, by its word: branches again."""


class TopicTree:
    """A set of topic names (SEM F6)."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._root: _Branch = {}
        self._names: set[str] = set()
        self.steps = 0
        """Branches that look-ups have come through, as a measure of their work."""
        self.add(topics)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, topics: Iterable[str]) -> None:
        """Add names; of one that is there already nothing changes."""
        for topic in topics:
            self._names.add(topic)
            branch = self._root
            for word in topic.split("/"):
                branch = branch.setdefault(word, {})

    def find(self, text: str) -> Iterator[str]:
        """The names that a right filter takes."""
        *levels, last = text.split("/")
        found = [("", self._root)]
        for depth, word in enumerate(levels if last == "#" else (*levels, last)):
            found = [each for branch in found for each in self._next(depth, word, *branch)]
        if last == "#":
            yield from self._all_below(found, is_root=not levels)
            return
        for name, _ in found:
            if name in self._names:
                yield name

    def _next(
        self, depth: int, word: str, name: str, branch: _Branch
    ) -> Iterator[tuple[str, _Branch]]:
        """The branches behind one, by a level of a filter."""
        before = f"{name}/" if depth else ""
        if word != "+":
            below = branch.get(word)
            if below is not None:
                self.steps += 1
                yield before + word, below
            return
        for each, below in branch.items():
            if depth or not each.startswith("$"):
                self.steps += 1
                yield before + each, below

    def _all_below(self, found: list[tuple[str, _Branch]], *, is_root: bool) -> Iterator[str]:
        """The names at branches, and at all that follow."""
        if is_root:
            yield from (each for each in self._names if not each.startswith("$"))
            return
        left = list(found)
        while left:
            name, branch = left.pop()
            self.steps += 1
            if name in self._names:
                yield name
            left += [(f"{name}/{word}", below) for word, below in branch.items()]
