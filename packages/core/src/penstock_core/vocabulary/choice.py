"""A choice of channels or queues: names, patterns, or both (SEM D21).

Subscriptions, durables over a pattern, the command line and Spark all use this language of
patterns. In a pattern ``*`` matches any part of a name up to the next ``/``, ``**`` any part
including ``/``, and ``?`` one character. A name that contains one of these or a comma is escaped as
by :func:`penstock_core.vocabulary.names.escaped`: ``%2C`` for the comma.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument, InvalidName, LimitReached
from penstock_core.vocabulary.names import NAME_LENGTH_MAX, destination_name, unescaped

_WILD: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_SPECIAL: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%,*?"})


WILD_IN_EXPRESSION_MAX: Final = 2
"""Maximum number of wildcards of a pattern that is matched by a regular expression, whose time may
grow as the length of the name to the power of this number."""
PATTERNS_KEPT_MAX: Final = 1_024
"""Patterns whose parsed form a process keeps. A pattern stands for at most 255 characters."""
TERMS_MAX: Final = 64
"""Maximum number of names and patterns in a choice that a realm evaluates whenever a channel is
created."""


class Choice(Struct, frozen=True):
    """Names and patterns, in canonical form."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    queues: bool = False
    """Whether names and patterns stand for queues only. If not, a name may be a channel's or a
    queue's, and patterns stand for channels."""

    @property
    def is_one(self) -> bool:
        """Whether the choice can never match more than one channel."""
        return len(self.names) == 1 and not self.patterns

    @property
    def text(self) -> str:
        """The choice as a user would write it."""
        # Escaped, so that a name with a wildcard or comma is parsed as the same name again.
        names = [name.translate(_SPECIAL) for name in self.names]
        return ", ".join((*names, *self.patterns))

    @property
    def kind(self) -> str:
        return "queue" if self.queues else "channel"

    def takes(self, name: str) -> bool:
        """Whether the choice includes a channel with this name."""
        return name in self.names or any(fits(name, pattern) for pattern in self.patterns)

    def select(self, existing: Iterable[str]) -> list[str]:
        """Return the chosen names, sorted: all names of the choice, and those of ``existing`` that
        match its patterns."""
        matches = {
            name for name in existing if any(fits(name, pattern) for pattern in self.patterns)
        }
        return sorted(matches.union(self.names))


def choice_of(text: str, *, queues: bool = False) -> Choice:
    """Parse a list of names and patterns between commas. Raises ``InvalidName``,
    ``InvalidArgument``."""
    parts = [part for part in map(str.strip, text.split(",")) if part]
    names = {destination_name(unescaped(part)) for part in parts if not is_pattern(part)}
    patterns = {part.removeprefix("/") for part in parts if is_pattern(part)}
    for pattern in patterns:
        length = len(unescaped(pattern))
        if length > NAME_LENGTH_MAX:
            raise InvalidName(
                f"{pattern[:40]!r}… has {length} characters; a pattern may have at most "
                f"{NAME_LENGTH_MAX}"
            )
        # The parts without wildcards must be valid in names: a letter stands for each wildcard.
        without_wildcards = re.sub(r"[*?]+", "x", pattern)
        destination_name(unescaped(without_wildcards))
    if not parts:
        raise InvalidArgument("the list of channels is empty; name at least one channel or pattern")
    return Choice(tuple(sorted(names)), tuple(sorted(patterns)), queues)


def short_choice_of(text: str) -> Choice:
    """Parse a choice that a realm evaluates whenever a channel is created. Raises ``LimitReached``
    for more than ``TERMS_MAX`` terms, and the errors of :func:`choice_of`."""
    choice = choice_of(text)
    if len(choice.names) + len(choice.patterns) > TERMS_MAX:
        raise LimitReached(
            f"{len(choice.names) + len(choice.patterns)} names and patterns are too many; at most "
            f"{TERMS_MAX} are allowed: use a shorter pattern, or several subscriptions"
        )
    return choice


def is_pattern(text: str) -> bool:
    """Whether a term has wildcards; names in a list contain them only in escaped form."""
    return "*" in text or "?" in text


def fits(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, in time proportional to the product of their lengths."""
    tokens = _tokens(pattern)
    if sum(wild for _, wild in tokens) <= WILD_IN_EXPRESSION_MAX:
        return _expression(pattern).fullmatch(name) is not None
    return _matches_by_positions(tokens, name)


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _tokens(pattern: str) -> tuple[tuple[str, bool], ...]:
    """Return the characters and wildcards of a pattern, each with a flag that is true for
    wildcards."""
    tokens: list[tuple[str, bool]] = []
    for part in _split_at_wildcards(pattern):
        if part in _WILD:
            tokens.append((part, True))
        else:
            tokens += [(sign, False) for sign in _literal(part)]
    return tuple(tokens)


def _split_at_wildcards(pattern: str) -> list[str]:
    return re.split(r"(\*\*|\*|\?)", pattern)


def _literal(part: str) -> str:
    # Names of channels are stored in NFC.
    return unicodedata.normalize("NFC", unescaped(part))


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern."""
    return re.compile(
        "".join(
            _WILD.get(part) or re.escape(_literal(part)) for part in _split_at_wildcards(pattern)
        )
    )


def _matches_by_positions(tokens: tuple[tuple[str, bool], ...], name: str) -> bool:
    """Whether the name matches a pattern, found by following all positions in the pattern at once.
    A regular expression with many wildcards would try the combinations one after the other, which
    takes too long."""
    positions = _skip_empty_wildcards(tokens, {0})
    for sign in name:
        next_positions = set()
        for position in positions:
            # The pattern has ended, but the name has not.
            if position == len(tokens):
                continue
            token, is_wild = tokens[position]
            if not is_wild:
                next_positions |= {position + 1} if token == sign else set()
            elif token == "**" or sign != "/":
                next_positions.add(position + 1 if token == "?" else position)
        positions = _skip_empty_wildcards(tokens, next_positions)
    return len(tokens) in positions


def _skip_empty_wildcards(tokens: tuple[tuple[str, bool], ...], positions: set[int]) -> set[int]:
    """Return the positions, and the positions after each ``*`` or ``**`` at them, because these
    wildcards also match an empty text."""
    reached = set(positions)
    for position in positions:
        while position < len(tokens) and tokens[position] in (("*", True), ("**", True)):
            position += 1
            reached.add(position)
    return reached
