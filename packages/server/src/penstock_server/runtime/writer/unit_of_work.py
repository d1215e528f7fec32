"""What a session publishes and acknowledges in one transaction: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.settlements import Ack, AckPrevious
from penstock_core.vocabulary.digest import Digest
from penstock_server.runtime.store import merging
from penstock_server.runtime.store.bodies import Body, digest_of
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_stops import refuse_stopped
from penstock_server.runtime.writer.requests import Reply
from penstock_server.runtime.writer.schedules import scheduled, waits


class Acknowledged(Struct, frozen=True):
    """What one subscription has acknowledged."""

    number: int
    """Id of the channel."""
    subscription: int
    spans: Spans
    previous: bool = False
    """Whether everything before is acknowledged, too (SEM D, cumulative)."""

    @property
    def command(self) -> Ack | AckPrevious:
        """The command for this acknowledgement."""
        if self.previous:
            return AckPrevious(self.subscription, max(span[1] for span in self.spans) - 1)
        return Ack(self.subscription, self.spans)


class UnitOfWork(Struct):
    """Publishes and acknowledgements that are written in one block."""

    publishes: Sequence[tuple[int, Sequence[Body]]]
    """By store, in the order they were published; a store may be named again."""
    acknowledged: Sequence[Acknowledged]
    event_bytes_max: int
    publisher: str = ""
    reply: Reply | None = None

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return self.publishes

    def run(self, group: Group) -> tuple[tuple[int, Span], ...]:
        """The ids of each store's events. Raises ``Refused``, and nothing of it has happened."""
        group.settle()
        for each in self.acknowledged:
            # raises if it is not possible
            group.channel(each.number).decide(each.command, group.now_us)
        publishes = self._publishes(group)
        if publishes:
            refuse_stopped(group, publishes)
        # A unit of its own: stores that were not full may overshoot (SEM T4).
        below = {n for n in publishes if not group.channel(n).state.is_full}
        group.check(publishes, below)
        spans = tuple(
            (number, group.publish(number, bodies, digest, forced=True, publisher=self.publisher))
            for number, (bodies, digest) in publishes.items()
        )
        for each in self.acknowledged:
            group.acknowledge(each.number, each.command)
        return spans

    def _publishes(self, group: Group) -> dict[int, tuple[list[Body], Digest]]:
        """The events by store; those that wait for their time by the store they wait in."""
        found: dict[tuple[int, bool], list[Body]] = {}
        for number, bodies in self.publishes:
            group.channel(number)  # raises if it was deleted
            for body in bodies:
                found.setdefault((number, waits((body,))), []).append(body)
        return by_store(group, found, self.event_bytes_max)


def by_store(
    group: Group, found: dict[tuple[int, bool], list[Body]], event_bytes_max: int
) -> dict[int, tuple[list[Body], Digest]]:
    """Events by channel, and whether they wait for their time, as events by the store they go to:
    those that wait, by the store they wait in. Nothing is made there before all are checked."""
    digests = {key: digest_of(bodies, event_bytes_max) for key, bodies in found.items()}
    for (number, later), bodies in found.items():
        if later:
            state, store = group.channel(number).state, group.state.stores[number]
            merging.refuse(state, store, bodies, digest=digests[number, later])
    publishes = {}
    for (number, later), bodies in found.items():
        where, digest = number, digests[number, later]
        if later:
            where, digest = scheduled(group, number, bodies, digest=digest)
        publishes[where] = (bodies, digest)
    return publishes
