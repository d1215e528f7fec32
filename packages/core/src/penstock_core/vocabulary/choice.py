"""The channels or queues that somebody names: one name, several, or patterns (SEM D21).

It is the one language of patterns: of subscriptions, of durables over a pattern, of the command
line and of Spark. In a pattern ``*`` stands for any part of a name up to the next ``/``, ``**`` for
any part across them, ``?`` for one character. A name that has one of these or a comma in it is
written as :func:`penstock_core.vocabulary.names.escaped` does: ``%2C`` for the comma.
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
"""Wildcards of a pattern that is matched by a regular expression."""
TERMS_MAX: Final = 64
"""Names and patterns in a choice that a realm looks at whenever a channel is made."""


class Choice(Struct, frozen=True):
    """Names and patterns, in canonical form."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    queues: bool = False
    """Queues only; otherwise a name may be a channel's or a queue's, and patterns are for
    channels."""

    @property
    def is_one(self) -> bool:
        """Whether it can never be more than one channel."""
        return len(self.names) == 1 and not self.patterns

    @property
    def text(self) -> str:
        """The choice as a user would write it."""
        names = [name.translate(_SPECIAL) for name in self.names]
        return ", ".join((*names, *self.patterns))

    @property
    def kind(self) -> str:
        return "queue" if self.queues else "channel"

    def takes(self, name: str) -> bool:
        """Whether a channel of this name is meant."""
        return name in self.names or any(fits(name, pattern) for pattern in self.patterns)

    def select(self, there: Iterable[str]) -> list[str]:
        """The names that are read, in order: those that were named, and of those that are
        ``there`` what the patterns take."""
        found = {name for name in there if any(fits(name, pattern) for pattern in self.patterns)}
        return sorted(found.union(self.names))


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
        bare = re.sub(r"[*?]+", "x", pattern)
        destination_name(unescaped(bare))  # the parts without wildcards must be valid in names
    if not parts:
        raise InvalidArgument("no channel is given")
    return Choice(tuple(sorted(names)), tuple(sorted(patterns)), queues)


def short_choice_of(text: str) -> Choice:
    """Parse a choice that a realm looks at whenever a channel is made. Raises ``LimitReached`` for
    one of many terms, and as :func:`choice_of`."""
    choice = choice_of(text)
    if len(choice.names) + len(choice.patterns) > TERMS_MAX:
        raise LimitReached(
            f"these are {len(choice.names) + len(choice.patterns)} names and patterns; at most "
            f"{TERMS_MAX} are looked at: take a shorter pattern, or several subscriptions"
        )
    return choice


def is_pattern(text: str) -> bool:
    """Whether it has wildcards, which names in a list have escaped only."""
    return "*" in text or "?" in text


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern. Its time grows with both, and no faster."""
    tokens = _tokens(pattern)
    if sum(wild for _, wild in tokens) <= WILD_IN_EXPRESSION_MAX:
        return _expression(pattern).fullmatch(name) is not None
    return _leads_to_end(tokens, name)


@lru_cache(maxsize=1_024)
def _tokens(pattern: str) -> tuple[tuple[str, bool], ...]:
    """Characters and wildcards, each with whether it is one of the latter."""
    found: list[tuple[str, bool]] = []
    for piece in _pieces(pattern):
        if piece in _WILD:
            found.append((piece, True))
        else:
            found += [(sign, False) for sign in _literal(piece)]
    return tuple(found)


def _pieces(pattern: str) -> list[str]:
    return re.split(r"(\*\*|\*|\?)", pattern)


def _literal(piece: str) -> str:
    return unicodedata.normalize("NFC", unescaped(piece))


@lru_cache(maxsize=1_024)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join(_WILD.get(piece) or re.escape(_literal(piece)) for piece in _pieces(pattern))
    )


def _leads_to_end(tokens: tuple[tuple[str, bool], ...], name: str) -> bool:
    """Go through the name with all places of the pattern at once: a regular expression with many
    wildcards tries one way after the other."""
    places = _with_skipped(tokens, {0})
    for sign in name:
        after = set()
        for place in places:
            if place == len(tokens):
                continue
            token, is_wild = tokens[place]
            if not is_wild:
                after |= {place + 1} if token == sign else set()
            elif token == "**" or sign != "/":
                after.add(place + 1 if token == "?" else place)
        places = _with_skipped(tokens, after)
    return len(tokens) in places


def _with_skipped(tokens: tuple[tuple[str, bool], ...], places: set[int]) -> set[int]:
    """The places given, and those behind wildcards there that may stand for nothing."""
    found = set(places)
    for place in places:
        while place < len(tokens) and tokens[place] in (("*", True), ("**", True)):
            place += 1
            found.add(place)
    return found
