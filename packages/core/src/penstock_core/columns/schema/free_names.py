"""Column and field names that stay distinct when case is ignored.

Spark and Delta ignore case: of ``price`` and ``Price`` the first keeps its name, and the other
becomes ``properties.Price``, as a column and as a field of a struct.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

PREFIX: Final = "properties."
"""Prefix of a column or field whose own name is in use."""


def free_name(name: str, used: Container[str]) -> str:
    """Return ``name``, or a name derived from it, whose case-folded form is not in ``used``."""
    candidate, number = name, 1
    while candidate.casefold() in used:
        candidate = f"{PREFIX}{name}" if number == 1 else f"{PREFIX}{name}.{number}"
        number += 1
    return candidate


def free_names(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Return a free name for each name. ``reserved`` names are in use already."""
    used = {name.casefold() for name in reserved}
    places: dict[str, str] = {}
    for name in dict.fromkeys(names):
        places[name] = free_name(name, used)
        used.add(places[name].casefold())
    return places
