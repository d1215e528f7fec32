"""A session's unit of work: publishes and acknowledgements that take effect together or not at
all."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command
from penstock_core.messages.settlements import Ack, AckPrevious
from penstock_core.vocabulary.digest import Digest
from penstock_server.runtime.store import merging
from penstock_server.runtime.store.bodies import Body, digest_of
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_stops import refuse_stopped
from penstock_server.runtime.writer.requests import ShardRequest
from penstock_server.runtime.writer.schedules import scheduled, waits


class Acknowledged(Struct, frozen=True):
    """The events that one subscription acknowledges."""

    channel_id: int
    subscription: int
    spans: Spans
    previous: bool = False
    """Whether all earlier events are also acknowledged (SEM D, cumulative)."""

    @property
    def command(self) -> Ack | AckPrevious:
        """The command for this acknowledgement."""
        if self.previous:
            return AckPrevious(self.subscription, max(span[1] for span in self.spans) - 1)
        return Ack(self.subscription, self.spans)


class UnitOfWork(ShardRequest):
    """Publishes and acknowledgements that are written in one block."""

    publishes: Sequence[tuple[int, Sequence[Body]]]
    """Bodies by store, in the order of publishing. A store may be named more than once."""
    acknowledged: Sequence[Acknowledged]
    event_bytes_max: int
    publisher: str = ""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return self.publishes

    @property
    def settlements(self) -> Sequence[tuple[int, Command]]:
        return [(part.channel_id, part.command) for part in self.acknowledged]

    def run(self, group: Group) -> tuple[tuple[int, Span], ...]:
        """Publish, acknowledge, and return the ids of each store's events. Raises ``Refused``
        before anything is changed."""
        group.settle()
        for acknowledged in self.acknowledged:
            # Decided here only to raise a refusal before anything is stored.
            group.channel(acknowledged.channel_id).decide(acknowledged.command, group.now_us)
        publishes = self._publishes(group)
        if publishes:
            refuse_stopped(group, publishes)
        # The transaction is one unit: stores that were not full may overshoot (SEM T4).
        below_capacity = {
            channel_id for channel_id in publishes if not group.channel(channel_id).state.is_full
        }
        group.check(publishes, below_capacity)
        spans = tuple(
            (
                channel_id,
                group.publish(channel_id, bodies, digest, forced=True, publisher=self.publisher),
            )
            for channel_id, (bodies, digest) in publishes.items()
        )
        for acknowledged in self.acknowledged:
            group.acknowledge(acknowledged.channel_id, acknowledged.command)
        return spans

    def _publishes(self, group: Group) -> dict[int, tuple[list[Body], Digest]]:
        """Return the events by store. Scheduled events are under the store where they wait."""
        by_time: dict[tuple[int, bool], list[Body]] = {}
        for channel_id, bodies in self.publishes:
            group.channel(channel_id)  # raises NameDoesNotExist if the channel was deleted
            for body in bodies:
                by_time.setdefault((channel_id, waits((body,))), []).append(body)
        return by_store(group, by_time, self.event_bytes_max)


def by_store(
    group: Group, by_time: dict[tuple[int, bool], list[Body]], event_bytes_max: int
) -> dict[int, tuple[list[Body], Digest]]:
    """Return events by the store that receives them, with their digests. The keys of ``by_time``
    are the channel, and whether the events are scheduled. Scheduled events go to the store where
    they wait, which is created only after all events are checked."""
    digests = {key: digest_of(bodies, event_bytes_max) for key, bodies in by_time.items()}
    for (channel_id, is_scheduled), bodies in by_time.items():
        if is_scheduled:
            state, store = group.channel(channel_id).state, group.state.stores[channel_id]
            merging.refuse(state, store, bodies, digest=digests[channel_id, is_scheduled])
    publishes = {}
    for (channel_id, is_scheduled), bodies in by_time.items():
        store_id, digest = channel_id, digests[channel_id, is_scheduled]
        if is_scheduled:
            store_id, digest = scheduled(group, channel_id, bodies, digest=digest)
        publishes[store_id] = (bodies, digest)
    return publishes
