"""Which topic filters take a topic: a tree of their levels, so the cost is by what matches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

REMEMBERED_MAX: Final = 10_000
"""Most topics of which it is remembered what takes them."""
CHARACTERS_MAX: Final = 256
"""Characters of the longest of them."""
MATCHES_MAX: Final = 1_000_000
"""Most filters that are remembered for all of them together."""


class _Level(Generic[T]):
    __slots__ = ("below", "every", "own")

    def __init__(self) -> None:
        self.below: dict[str, _Level[T]] = {}
        self.own: dict[T, None] = {}
        """Whose filters end here."""
        self.every: dict[T, None] = {}
        """Whose filters take all that follows, too."""

    @property
    def is_empty(self) -> bool:
        return not (self.below or self.own or self.every)


class TopicIndex(Generic[T]):
    """Right topic filters, and whose they are (SEM F6)."""

    def __init__(self) -> None:
        self._root: _Level[T] = _Level()
        self._known: dict[str, tuple[T, ...]] = {}
        self._matches = 0

    def add(self, text: str, whose: T) -> None:
        self._known.clear()
        self._matches = 0
        *levels, last = text.split("/")
        level = self._root
        for each in levels if last == "#" else (*levels, last):
            level = level.below.setdefault(each, _Level())
        (level.every if last == "#" else level.own)[whose] = None

    def remove(self, text: str, whose: T) -> None:
        """Forget one that was added."""
        self._known.clear()
        self._matches = 0
        *levels, last = text.split("/")
        path = [self._root]
        words = levels if last == "#" else [*levels, last]
        for each in words:
            path.append(path[-1].below[each])
        del (path[-1].every if last == "#" else path[-1].own)[whose]
        for depth in range(len(words), 0, -1):
            if path[depth].is_empty:
                path[depth - 1].below.pop(words[depth - 1], None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody has a filter."""
        return self._root.is_empty

    def find(self, topic: str) -> tuple[T, ...]:
        """Whose filters take a topic; one for each filter."""
        found = self._known.get(topic)
        if found is None:
            found = tuple(self._found(topic))
            if len(topic) <= CHARACTERS_MAX:
                self._remember(topic, found)
        return found

    def _remember(self, topic: str, found: tuple[T, ...]) -> None:
        self._matches += len(found)
        if len(self._known) >= REMEMBERED_MAX or self._matches > MATCHES_MAX:
            self._known.clear()
            self._matches = len(found)
        self._known[topic] = found

    def _found(self, topic: str) -> Iterator[T]:
        levels = topic.split("/")
        open_ = [self._root]
        for depth, each in enumerate(levels):
            wild = depth > 0 or not topic.startswith("$")
            following: list[_Level[T]] = []
            for level in open_:
                if wild:
                    yield from level.every
                words = (each, "+") if wild else (each,)
                following.extend(level.below[word] for word in words if word in level.below)
            open_ = following
        for level in open_:
            yield from level.own
            yield from level.every
