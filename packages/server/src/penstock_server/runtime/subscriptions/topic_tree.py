"""The topics of a channel that keeps the newest event of each, as a tree of their levels.

The tree is made of the values of the publish key ``topic`` when it is asked for first. Values that
are new are added at each later question, so what a question costs goes by what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.vocabulary.topics import name_fault

Branch = dict[str, Any]
"""What follows a level, by its word: branches again."""


class TopicTree:
    """A set of topic names (SEM F6)."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._root: Branch = {}
        self._names: set[str] = set()
        self.steps = 0
        """Branches that look-ups have come through, as a measure of their work."""
        self.add(topics)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def add(self, topics: Iterable[str]) -> None:
        """Add names; of one that is there already nothing changes."""
        for topic in topics:
            self._names.add(topic)
            branch = self._root
            for word in topic.split("/"):
                branch = branch.setdefault(word, {})

    def below(self, prefix: str | None) -> Branch:
        """What follows a topic; nothing given: the first levels."""
        branch = self._root
        for word in () if prefix is None else prefix.split("/"):
            branch = branch.get(word) or {}
        return branch

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
        self, depth: int, word: str, name: str, branch: Branch
    ) -> Iterator[tuple[str, Branch]]:
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

    def _all_below(self, found: list[tuple[str, Branch]], *, is_root: bool) -> Iterator[str]:
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


class _Known(NamedTuple):
    """The tree of a channel, and what it was made from."""

    keys: KeyIndex
    renumberings: int
    tree: TopicTree


class TopicTrees:
    """The trees of channels, made when they are asked for."""

    def __init__(self, is_there: Callable[[int], bool]) -> None:
        """``is_there`` tells whether there is a channel of a number still."""
        self._is_there = is_there
        self._known: dict[int, _Known] = {}
        self._counts: dict[int, int] = {}
        """Values of the key that are in the tree, by channel."""

    def of(self, channel: int, keys: KeyIndex) -> TopicTree:
        """The topics that have occurred in a channel of which ``keys`` is the index of its publish
        key ``topic``; not for each of them there is an event still."""
        known = self._known.get(channel)
        if known is None or known.keys is not keys or known.renumberings != keys.renumberings:
            for gone in [each for each in self._known if not self._is_there(each)]:
                del self._known[gone], self._counts[gone]
            known = self._known[channel] = _Known(keys, keys.renumberings, TopicTree())
            self._counts[channel] = 0
        new = keys.texts(self._counts[channel])
        self._counts[channel] += len(new)
        known.tree.add(each for each in new if not name_fault(each))
        return known.tree
