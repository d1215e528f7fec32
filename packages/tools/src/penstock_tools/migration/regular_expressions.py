"""Regular expressions of RabbitMQ on the names of queues and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock_core.vocabulary.errors import InvalidArgument

MATCHES_MAX: Final = 20_000_000
"""Maximum number of applications of a pattern to a name, over all patterns of one file."""
PATTERN_CHARACTERS_MAX: Final = 1_000
"""Maximum number of characters of a pattern."""
EVERYTHING: Final = frozenset((".*", "^.*", ".*$", "^.*$", "^"))
"""Patterns that match every name, as people write them."""
NOTHING: Final = frozenset(("", "^$"))
"""Patterns that match no name. RabbitMQ reads an empty permission as ``^$``."""


class NamePatterns:
    """Applies patterns to a list of names. The time is linear in the length of the names, whatever
    the pattern, because Arrow's engine does not backtrack."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._column = pa.array(names, pa.string())
        self._known: dict[str, frozenset[str]] = {}
        self._applied = 0

    def matching(self, pattern: str) -> frozenset[str]:
        """Return the names that a pattern matches anywhere. Raises ``InvalidArgument`` if the
        pattern is malformed or has an assertion or back reference, or if the file has too many
        patterns."""
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidArgument(
                f"a pattern may have at most {PATTERN_CHARACTERS_MAX:,} characters"
            )
        self._applied += len(self._names)
        if self._applied > MATCHES_MAX:
            raise InvalidArgument("the file has too many patterns for its number of names")
        if pattern in self._known:
            return self._known[pattern]
        try:
            is_match = pc.match_substring_regex(self._column, pattern)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"the pattern {pattern!r:.80} cannot be applied, so write its names yourself: "
                f"{str(error).partition(': ')[2]}"
            ) from error
        names = frozenset(self._column.filter(is_match).to_pylist())
        self._known[pattern] = names
        return names
