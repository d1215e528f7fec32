"""Bindings of RabbitMQ as selectors: routing keys, topic patterns and headers (SEM F)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby, product
from typing import Any, Final

from penstock_core.bounds import NUMBER_MAX
from penstock_core.vocabulary.errors import InvalidArgument

_ANY_WORDS_MAX: Final = 4
"""Maximum number of ``#`` between words of a pattern; each doubles the conditions."""
_PROPERTY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
"""Names that a selector reads as one property."""
_OTHER_THAN_PROPERTIES: Final = re.compile(r"(?i)event_id|tag|published|JMS(?![X_]).*")
"""Names in selectors that are parts of an event, not properties."""


def selector_of_keys(keys: Collection[str], name: str) -> str:
    """Return the condition that the routing key, which selectors call ``name``, is one of
    ``keys``."""
    conditions = []
    if "" in keys:  # an event without a tag, or without the property, has a null there
        conditions.append(f"{name} IS NULL")
    texts = [_text(key) for key in sorted(keys)]
    conditions.append(
        f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} IN ({', '.join(texts)})"
    )
    return " OR ".join(conditions)


def selector_of_pattern(pattern: str, name: str) -> str:
    """Return the condition that the routing key matches a pattern of a topic exchange: words
    between dots, ``*`` for one word and ``#`` for any number of words. Empty if every key matches.

    Raises ``InvalidArgument`` if no selector expresses the pattern.
    """
    words = pattern.split(".")
    if "#" not in words:
        return _fixed_length(words, name)
    runs = [
        (is_wild, list(run)) for is_wild, run in groupby(words, key=lambda word: word in ("*", "#"))
    ]
    choices: list[tuple[list[str], ...]] = []
    for is_wild, run in runs:
        stars = run.count("*")
        if not is_wild:
            choices.append((run,))
        elif "#" not in run:
            raise InvalidArgument(_advice_on(words))
        else:
            # At least `stars` words: LIKE's % matches any text, dots included.
            choices.append((["*"] * stars,) if stars else ([], ["*"]))
    if sum(len(choice) > 1 for choice in choices) > _ANY_WORDS_MAX:
        raise InvalidArgument(f"it has more than {_ANY_WORDS_MAX} # between words")
    alternatives = [[word for part in parts for word in part] for parts in product(*choices)]
    # A lone # matches every key, and so does a lone * beside it: a key has at least one word.
    if [] in alternatives or ["*"] in alternatives:
        return ""
    conditions = sorted({_alike(alternative, name) for alternative in alternatives})
    return " OR ".join(conditions)


def selector_of_headers(arguments: Mapping[str, Any]) -> str | None:
    """Return the condition of a binding to a headers exchange on the properties of an event. Empty
    if every event matches, None if none does.

    Raises ``InvalidArgument`` for a header that no selector can test.
    """
    mode = arguments.get("x-match", "all")
    if mode not in ("all", "any", "all-with-x", "any-with-x"):
        raise InvalidArgument(f"x-match is {mode!r}, which is not a mode of a headers exchange")
    with_x = str(mode).endswith("-with-x")
    conditions = [
        _header(header, value)
        for header, value in sorted(arguments.items())
        if header != "x-match" and (with_x or not header.startswith("x-"))
    ]
    if str(mode).startswith("all"):
        return " AND ".join(conditions)
    return " OR ".join(conditions) if conditions else None


class KeyRoutes:
    """The destinations of the bindings of one exchange, by routing key."""

    def __init__(self) -> None:
        self._destinations_of_key: dict[str, set[str]] = {}
        self._destinations_of_pattern: dict[str, set[str]] = {}
        self._words = 0
        """Words of all patterns."""

    def add(self, pattern: str, destination: str, *, is_literal: bool) -> None:
        """Add a binding; ``is_literal`` states whether the binding takes only the key that equals
        its pattern."""
        routes = self._destinations_of_key if is_literal else self._destinations_of_pattern
        if pattern not in routes:
            routes[pattern] = set()
            self._words += 0 if is_literal else pattern.count(".") + 1
        # A third destination makes no difference to `destinations`.
        if len(routes[pattern]) < 2:
            routes[pattern].add(destination)

    def comparisons(self, key: str) -> int:
        """Return how many words ``destinations`` compares at most."""
        return self._words * (key.count(".") + 1)

    def destinations(self, key: str) -> set[str]:
        """Return the destinations of events with a routing key; if there are more than two, at
        least two of them."""
        reached = set(self._destinations_of_key.get(key, ()))
        for pattern, destinations in self._destinations_of_pattern.items():
            if len(reached) > 1:
                break
            if matches(pattern, key):
                reached |= destinations
        return reached


def matches(pattern: str, key: str) -> bool:
    """Return whether a routing key matches a pattern of a topic exchange."""
    words = pattern.split(".")
    # Positions in the pattern that the words read so far can lead to, as in an automaton: the time
    # is bounded by the product of both lengths.
    positions = _after_hashes(words, {0})
    for word in key.split("."):
        following = set()
        for position in positions:
            if position < len(words) and words[position] == "#":
                following.add(position)
            elif position < len(words) and words[position] in ("*", word):
                following.add(position + 1)
        positions = _after_hashes(words, following)
    return len(words) in positions


def _after_hashes(words: list[str], positions: set[int]) -> set[int]:
    """Return the positions, and those behind the ``#`` at them: it may match no word."""
    reached = set(positions)
    for position in positions:
        end = position
        while end < len(words) and words[end] == "#":
            end += 1
            reached.add(end)
    return reached


def _fixed_length(words: list[str], name: str) -> str:
    """Return the condition for a pattern without ``#``: the number of words is fixed."""
    if "*" not in words:
        return selector_of_keys([".".join(words)], name)
    # All dots of a key with this many dots are those of the pattern, so % cannot match one.
    longer = "%.%" + ".%" * (len(words) - 1)
    condition = f"{name} NOT LIKE '{longer}'"
    if set(words) == {"*"} and len(words) == 1:
        return condition
    return f"{_alike(words, name)} AND {condition}"


def _alike(words: list[str], name: str) -> str:
    """Return the condition that the key has these words, with ``*`` for any text."""
    if "*" not in words:
        return selector_of_keys([".".join(words)], name)
    literals = "".join(words).replace("*", "") if words else ""
    escape = next(sign for sign in _escape_signs() if sign not in literals)
    pattern = ".".join(
        "%" if word == "*" else re.sub("[%_]", lambda found: escape + found[0], word)
        for word in words
    )
    is_escaped = "%" in literals or "_" in literals
    return f"{name} LIKE {_text(pattern)}" + (f" ESCAPE {_text(escape)}" if is_escaped else "")


def _escape_signs() -> Iterator[str]:
    """Yield characters that may mark a literal ``%`` or ``_`` in a LIKE pattern."""
    yield from "!|~^"
    yield from map(chr, range(0xE000, 0xF8FF))


def _advice_on(words: list[str]) -> str:
    """Return what to do with a pattern that LIKE cannot express."""
    reason = "a selector on text with dots cannot count the words beside a #; "
    if words.index("#") < len(words) - 1:
        return reason + "publish the words as properties, and select with these"
    levels = "/".join("+" if word == "*" else word for word in words)
    return reason + (
        f"publish the key with / between its words as a property, and select with MATCHES "
        f"{_text(levels)}"
    )


def _header(name: str, value: Any) -> str:
    """Return the condition that a property has a value; that it exists if the value is null."""
    if not _PROPERTY.fullmatch(name) or _OTHER_THAN_PROPERTIES.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a property in a selector; use letters, digits and _"
        )
    match value:
        case None:
            return f"{name} IS NOT NULL"
        case bool():
            return f"{name} = {'TRUE' if value else 'FALSE'}"
        case int() if abs(value) <= NUMBER_MAX:
            return f"{name} = {value}"
        case float():
            return f"{name} = {value!r}"
        case str():
            return f"{name} = {_text(value)}"
        case _:
            raise InvalidArgument(f"{name}: a selector cannot compare with {value!r:.80}")


def _text(value: str) -> str:
    """Return a text of a selector."""
    return "'" + value.replace("'", "''") + "'"
