"""The channels or queues that somebody names: one name, several, or patterns (SEM D21).

It is the one language of patterns: of subscriptions, of durables over a pattern, of the command
line and of Spark. In a pattern ``*`` stands for any part of a name up to the next ``/``, ``**`` for
any part across them, ``?`` for one character. A name that has one of these or a comma in it is
written as :func:`penstock.core.vocabulary.names.escaped` does: ``%2C`` for the comma.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.core.vocabulary.errors import InvalidArgument
from penstock.core.vocabulary.names import destination_name, unescaped

_WILD: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_SPECIAL: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%,*?"})


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

    def of(self, there: Iterable[str]) -> list[str]:
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
        bare = re.sub(r"[*?]+", "x", pattern)
        destination_name(unescaped(bare))  # the parts without wildcards must be valid in names
    if not parts:
        raise InvalidArgument("no channel is given")
    return Choice(tuple(sorted(names)), tuple(sorted(patterns)), queues)


def is_pattern(text: str) -> bool:
    """Whether it has wildcards, which names in a list have escaped only."""
    return "*" in text or "?" in text


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern."""
    return _expression(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1_024)
def _expression(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*|\*|\?)", pattern)
    return re.compile(
        "".join(
            _WILD.get(piece) or re.escape(unicodedata.normalize("NFC", unescaped(piece)))
            for piece in pieces
        )
    )
