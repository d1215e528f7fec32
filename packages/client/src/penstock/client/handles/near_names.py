"""Names that are like one that does not exist: of those that the caller may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SHOWN_MAX: Final = 3
_COMPARED_MAX: Final = 2_000
"""With more names than this no near ones are looked for, because comparing takes time."""


@asynccontextmanager
async def near_names(
    name: str, list_names: Callable[[], Awaitable[Sequence[str]]]
) -> AsyncIterator[None]:
    """Add the names that are like ``name`` to a ``NameDoesNotExist`` of the block. The realm lists
    only those that the caller may see."""
    try:
        yield
    except NameDoesNotExist as error:
        hint = await _hint(name, list_names)
        if not hint:
            raise
        raise NameDoesNotExist(f"{error}; {hint}") from None


async def _hint(name: str, list_names: Callable[[], Awaitable[Sequence[str]]]) -> str:
    import difflib  # few names are wrong

    try:
        names = await list_names()
    except PenstockError:
        return ""
    if not isinstance(name, str) or len(names) > _COMPARED_MAX or name in names:
        return ""
    by_folded = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=_SHOWN_MAX)
    near = [by_folded[folded] for folded in found if by_folded[folded] != name]
    return f"did you mean {' or '.join(near)}?" if near else ""
