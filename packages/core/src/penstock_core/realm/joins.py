"""Joins: events published on one store are copied to another (SEM L).

A copy carries its path, the stores it was published on before. A store on the path gets no copy, so
no event goes round in circles, and a path does not grow without end.

A join from a local channel to a store of the whole cluster copies into an outbox: a hidden store of
the node, named as the destination, from which the node publishes onward (SEM N9).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from penstock_core.messages.joins import Join

HOPS_MAX = 10
"""Most stores between the first and the last of an event's way (SEM L2)."""


class JoinTable:
    """The joins of a realm, by source."""

    def __init__(self) -> None:
        self.by_source: dict[int, dict[int, Join]] = {}
        """The joins of each store that has any, by destination."""
        self.by_outbox: dict[int, Join] = {}
        """The joins that lead out of the realm, by number of their outbox."""

    def add(self, join: Join) -> None:
        self.by_source.setdefault(join.source, {})[join.destination] = join
        if join.leads_out:
            self.by_outbox[join.destination] = join

    def remove(self, source: int, destination: int) -> None:
        self.by_outbox.pop(destination, None)
        there = self.by_source.get(source, {})
        there.pop(destination, None)
        if not there:
            self.by_source.pop(source, None)

    def find(self, source: int, destination: int) -> Join | None:
        return self.by_source.get(source, {}).get(destination)

    def copying_from(self, source: int) -> tuple[Join, ...]:
        """The joins that copy what is published here, in the order they were made."""
        return tuple(join for join in self.by_source.get(source, {}).values() if not join.ending)

    def into(self, destination: int) -> list[Join]:
        return [join for join in self if join.destination == destination]

    def forget(self, channel_id: int) -> None:
        """Remove the joins from a store that was deleted; those whose outbox is not empty yet end
        when it is."""
        there = self.by_source.pop(channel_id, {})
        for join in there.values():
            if join.leads_out:
                self.add(replace(join, ending=True))

    def reached_from(self, source: int) -> set[int]:
        """The stores that what is published on ``source`` may come to, itself among them."""
        reached, left = {source}, [source]
        while left:
            found = {join.destination for join in self.copying_from(left.pop())} - reached
            reached |= found
            left += found
        return reached

    def __iter__(self) -> Iterator[Join]:
        for there in self.by_source.values():
            yield from there.values()
