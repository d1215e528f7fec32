"""Joins: events published on one store are copied to another (SEM L).

A copy carries its path, the stores it was published on before. A store on the path gets no copy, so
no event goes round in circles, and a path does not grow without end.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

HOPS_MAX = 10
"""Most stores between the first and the last of an event's way (SEM L2)."""


class Join(Struct, frozen=True, array_like=True):
    source: int
    destination: int
    """Numbers of the stores."""
    selector: str = ""
    archive: bool = False
    """To a queue, which keeps duplicates that come on two routes (SEM L3)."""
    owner: str = ""
    """``user@host`` that made it, whose rights it copies with; empty: the realm's own."""
    groups: tuple[str, ...] = ()
    """Groups the owner's token or certificate named."""


class JoinTable:
    """The joins of a realm, by source."""

    def __init__(self) -> None:
        self.by_source: dict[int, dict[int, Join]] = {}
        """The joins of each store that has any, by destination."""

    def add(self, join: Join) -> None:
        self.by_source.setdefault(join.source, {})[join.destination] = join

    def remove(self, source: int, destination: int) -> None:
        there = self.by_source.get(source, {})
        there.pop(destination, None)
        if not there:
            self.by_source.pop(source, None)

    def find(self, source: int, destination: int) -> Join | None:
        return self.by_source.get(source, {}).get(destination)

    def of(self, source: int) -> tuple[Join, ...]:
        """The joins whose source this is, in the order they were made."""
        return tuple(self.by_source.get(source, {}).values())

    def into(self, destination: int) -> list[Join]:
        return [join for join in self if join.destination == destination]

    def forget(self, channel_id: int) -> None:
        """Remove the joins from and to a store that was deleted."""
        self.by_source.pop(channel_id, None)

    def __iter__(self) -> Iterator[Join]:
        for there in self.by_source.values():
            yield from there.values()
