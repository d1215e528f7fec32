"""A tree of the levels of topic filters. Finding the filters that match a topic costs time in
proportion to the matches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

CACHED_TOPICS_MAX: Final = 10_000
"""Maximum number of topics whose matches are cached."""
CHARACTERS_MAX: Final = 256
"""Maximum number of characters of a cached topic."""
MATCHES_MAX: Final = 1_000_000
"""Maximum number of matches that are cached for all topics together."""


class _Level(Generic[T]):
    """The filters that agree in all levels up to this one."""

    __slots__ = ("below", "exact", "multi_level")

    def __init__(self) -> None:
        self.below: dict[str, _Level[T]] = {}
        self.exact: dict[T, None] = {}
        """The values of filters that end at this level."""
        self.multi_level: dict[T, None] = {}
        """The values of filters that match all further levels."""

    @property
    def is_empty(self) -> bool:
        return not (self.below or self.exact or self.multi_level)


class TopicIndex(Generic[T]):
    """Values that are stored under valid topic filters (SEM F6) and found by topic."""

    def __init__(self, matches_max: int = MATCHES_MAX) -> None:
        self._root: _Level[T] = _Level()
        self.cached: dict[str, tuple[T, ...]] = {}
        """Matches by topic."""
        self._matches, self._matches_max = 0, matches_max

    def add(self, text: str, value: T) -> None:
        """Add a value under the filter ``text``."""
        # Any cached topic may match the filter.
        self.cached.clear()
        self._matches = 0
        *levels, last = text.split("/")
        level = self._root
        for word in levels if last == "#" else (*levels, last):
            level = level.below.setdefault(word, _Level())
        (level.multi_level if last == "#" else level.exact)[value] = None

    def remove(self, text: str, value: T) -> None:
        """Remove a value that was added under the filter ``text``."""
        self.cached.clear()
        self._matches = 0
        *levels, last = text.split("/")
        path = [self._root]
        words = levels if last == "#" else [*levels, last]
        for word in words:
            path.append(path[-1].below[word])
        del (path[-1].multi_level if last == "#" else path[-1].exact)[value]
        for depth in range(len(words), 0, -1):  # from the leaf upwards: remove empty levels
            if path[depth].is_empty:
                path[depth - 1].below.pop(words[depth - 1], None)

    @property
    def is_empty(self) -> bool:
        """Whether the index contains no filter."""
        return self._root.is_empty

    def find(self, topic: str) -> tuple[T, ...]:
        """Return the values of the filters that match a topic, one for each filter."""
        matches = self.cached.get(topic)
        if matches is None:
            matches = tuple(self._matches_of(topic))
            if len(topic) <= CHARACTERS_MAX:
                self._cache(topic, matches)
        return matches

    def _cache(self, topic: str, matches: tuple[T, ...]) -> None:
        self._matches += len(matches)
        if len(self.cached) >= CACHED_TOPICS_MAX or self._matches > self._matches_max:
            self.cached.clear()
            self._matches = len(matches)
        self.cached[topic] = matches

    def _matches_of(self, topic: str) -> Iterator[T]:
        """Yield the values of the filters that match a topic, found level by level."""
        levels = topic.split("/")
        current_levels = [self._root]
        for depth, topic_word in enumerate(levels):
            # A leading wildcard does not match topics that start with $ (4.7.2).
            matches_wildcards = depth > 0 or not topic.startswith("$")
            next_levels: list[_Level[T]] = []
            for level in current_levels:
                if matches_wildcards:
                    yield from level.multi_level
                words = (topic_word, "+") if matches_wildcards else (topic_word,)
                next_levels.extend(level.below[word] for word in words if word in level.below)
            current_levels = next_levels
        for level in current_levels:
            yield from level.exact
            yield from level.multi_level
