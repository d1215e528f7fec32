"""The topics of a channel that keeps the newest event of each topic, as a tree of their levels.

The first request builds the tree from the values of the publish key ``topic``. Later requests add
only new values, so the cost of a request depends on its result and not on the number of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.vocabulary.topics import name_fault

Branch = dict[str, Any]
"""The levels below a node of the tree: the branch of each word that follows."""

_TREE: Final = "topic tree"
"""Key of the tree among the structures derived from a key index."""


class TopicTree:
    """A set of topic names (SEM F6)."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._root: Branch = {}
        self._names: set[str] = set()
        self.values = 0
        """Number of values of the publish key that were added, with those that are not topics."""
        self.steps = 0
        """Branches visited by searches, as a measure of their work."""
        self.add(topics)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def add(self, topics: Iterable[str]) -> None:
        """Add topic names; names that the tree has already change nothing."""
        for topic in topics:
            self._names.add(topic)
            branch = self._root
            for word in topic.split("/"):
                branch = branch.setdefault(word, {})

    def below(self, prefix: str | None) -> Branch:
        """Return the branch below a topic prefix; None returns the first levels."""
        branch = self._root
        for word in () if prefix is None else prefix.split("/"):
            branch = branch.get(word) or {}
        return branch

    def find(self, text: str) -> Iterator[str]:
        """Yield the names that match a valid topic filter."""
        *levels, last = text.split("/")
        named_branches = [("", self._root)]
        for depth, word in enumerate(levels if last == "#" else (*levels, last)):
            named_branches = [
                following
                for name, branch in named_branches
                for following in self._next(depth, word, name, branch=branch)
            ]
        if last == "#":
            yield from self._all_below(named_branches, is_root=not levels)
            return
        for name, _ in named_branches:
            if name in self._names:
                yield name

    def _next(
        self, depth: int, word: str, name: str, branch: Branch
    ) -> Iterator[tuple[str, Branch]]:
        """Yield the branches after one that match a level of a filter."""
        prefix = f"{name}/" if depth else ""
        if word != "+":
            below = branch.get(word)
            if below is not None:
                self.steps += 1
                yield prefix + word, below
            return
        # MQTT: a wildcard at the first level does not match topics that begin with $.
        for level, below in branch.items():
            if depth or not level.startswith("$"):
                self.steps += 1
                yield prefix + level, below

    def _all_below(
        self, named_branches: list[tuple[str, Branch]], *, is_root: bool
    ) -> Iterator[str]:
        """Yield the names at branches, and at all branches below them."""
        if is_root:
            yield from (name for name in self._names if not name.startswith("$"))
            return
        pending = list(named_branches)
        while pending:
            name, branch = pending.pop()
            self.steps += 1
            if name in self._names:
                yield name
            pending += [(f"{name}/{word}", below) for word, below in branch.items()]


def topic_tree_of(keys: KeyIndex) -> TopicTree:
    """Return the topics that have occurred in a channel. A topic may have no event any more.
    ``keys`` is the index of the channel's publish key ``topic``."""
    tree = keys.derived.get(_TREE)
    if tree is None:
        tree = keys.derived[_TREE] = TopicTree()
    assert isinstance(tree, TopicTree), "only topic trees are stored under this key"
    new_values = keys.texts(tree.values)
    tree.values += len(new_values)
    tree.add(value for value in new_values if not name_fault(value))
    return tree
