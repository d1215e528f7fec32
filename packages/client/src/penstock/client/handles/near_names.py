"""Suggestions of similar names in errors about a name that does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SHOWN_MAX: Final = 3
_COMPARED_MAX: Final = 2_000
"""Maximum number of names to compare with; with more of them no name is suggested, as comparing
takes time."""


@asynccontextmanager
async def near_names(
    name: str, list_names: Callable[[], Awaitable[Sequence[str]]]
) -> AsyncIterator[None]:
    """Add names similar to ``name`` to a ``NameDoesNotExist`` that the block raises. The realm
    lists only names that the caller may see, so a suggestion reveals nothing."""
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
    by_folded = {candidate.casefold(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=_SHOWN_MAX)
    near = [by_folded[folded] for folded in matches if by_folded[folded] != name]
    return f"did you mean {' or '.join(near)}?" if near else ""
