"""Suggests similar names in errors about a name that does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SHOWN_MAX: Final = 3
"""Largest number of names that an error suggests."""
_COMPARED_MAX: Final = 2_000
"""Largest number of names that are compared. If the realm has more names, none is suggested,
because comparing takes time."""


@asynccontextmanager
async def near_names(
    name: str, list_names: Callable[[], Awaitable[Sequence[str]]]
) -> AsyncIterator[None]:
    """If the block raises ``NameDoesNotExist``, add the existing names that are similar to ``name``
    to its text.

    The realm lists only names that the caller may see, so a suggestion reveals nothing.
    """
    try:
        yield
    except NameDoesNotExist as error:
        hint = await _hint(name, list_names)
        if not hint:
            raise
        raise NameDoesNotExist(f"{error}; {hint}") from None


async def _hint(name: str, list_names: Callable[[], Awaitable[Sequence[str]]]) -> str:
    """Return a suggestion of similar names; empty if no name is similar or the list is not
    available."""
    import difflib  # only needed after an error

    try:
        names = await list_names()
    except PenstockError:
        return ""
    if not isinstance(name, str) or len(names) > _COMPARED_MAX or name in names:
        return ""
    names_by_folded = {candidate.casefold(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.casefold(), names_by_folded, n=_SHOWN_MAX)
    similar = [names_by_folded[folded] for folded in matches if names_by_folded[folded] != name]
    return f"did you mean {' or '.join(similar)}?" if similar else ""
