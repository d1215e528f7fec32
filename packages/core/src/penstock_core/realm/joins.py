"""Joins: events published on one store are copied to another (SEM L).

A copy carries its path: all stores that published it before. A store on the path gets no copy, so
events do not circulate, and a path does not grow without limit.

A join from a local channel to a store of the whole cluster copies into an outbox: a hidden store of
the node, named like the destination. The node publishes the copies from there (SEM N9).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from penstock_core.messages.joins import Join

HOPS_MAX = 10
"""Maximum number of stores between the first and the last store of an event's path (SEM L2)."""


class JoinTable:
    """The joins of a realm, by source."""

    def __init__(self) -> None:
        self.by_source: dict[int, dict[int, Join]] = {}
        """The joins of each source store, by destination."""
        self.by_outbox: dict[int, Join] = {}
        """The joins that lead out of the realm, by id of their outbox."""

    def add(self, join: Join) -> None:
        self.by_source.setdefault(join.source, {})[join.destination] = join
        if join.leads_out:
            self.by_outbox[join.destination] = join

    def remove(self, source: int, destination: int) -> None:
        self.by_outbox.pop(destination, None)
        joins = self.by_source.get(source, {})
        joins.pop(destination, None)
        if not joins:
            self.by_source.pop(source, None)

    def find(self, source: int, destination: int) -> Join | None:
        return self.by_source.get(source, {}).get(destination)

    def copying_from(self, source: int) -> tuple[Join, ...]:
        """Return the joins that copy events of ``source``, in the order of creation."""
        return tuple(join for join in self.by_source.get(source, {}).values() if not join.ending)

    def into(self, destination: int) -> list[Join]:
        return [join for join in self if join.destination == destination]

    def forget(self, channel_id: int) -> None:
        """Remove the joins of a deleted source store. Joins with an outbox are marked as ending,
        and end when the outbox is empty."""
        joins = self.by_source.pop(channel_id, {})
        for join in joins.values():
            if join.leads_out:
                self.add(replace(join, ending=True))

    def reached_from(self, source: int) -> set[int]:
        """Return all stores that events published on ``source`` may reach, including itself."""
        reached, pending = {source}, [source]
        while pending:
            destinations = {join.destination for join in self.copying_from(pending.pop())} - reached
            reached |= destinations
            pending += destinations
        return reached

    def __iter__(self) -> Iterator[Join]:
        for joins in self.by_source.values():
            yield from joins.values()
