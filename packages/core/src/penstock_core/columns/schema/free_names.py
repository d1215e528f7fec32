"""Names for columns and fields that programs tell apart which ignore case.

Spark and Delta do not tell upper from lower case: of ``price`` and ``Price`` the first one keeps
its name, and the other one is ``properties.Price``, as a column and as a field of a struct.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

PREFIX: Final = "properties."
"""Begins the name of a column or field whose own name is taken."""


def free_name(name: str, taken: Container[str]) -> str:
    """``name``, or one made of it, whose case-folded form is not in ``taken``."""
    place, number = name, 1
    while place.casefold() in taken:
        place = f"{PREFIX}{name}" if number == 1 else f"{PREFIX}{name}.{number}"
        number += 1
    return place


def free_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """The free name of each name; ``taken`` are names that are in use already."""
    used = {name.casefold() for name in taken}
    places: dict[str, str] = {}
    for name in dict.fromkeys(names):
        places[name] = free_name(name, used)
        used.add(places[name].casefold())
    return places
