"""Random publishes to a channel, and their effect on the model."""

from __future__ import annotations

from random import Random

import pytest

from penstock_core.ids.id_lists import listed
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.publishing import Publish
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import CapacityReached
from tests.model.channel_model import Kept
from tests.model.compared import Compared


def spans(ids: set[int]) -> Spans:
    return IdSet.from_ids(ids).spans


class Publishing(Compared):
    definition: Definition
    sequence: int
    stored_as: dict[int, Span]
    """The ids that a publish received, by sequence number."""
    volatile_seen: bool
    event_bytes: int
    """Size of the events; with large ones, dead events move in more steps."""

    def publish(self, random: Random) -> None:
        flags = [random.random() < 0.7 for _ in range(random.randint(1, 9))]
        passing = {i for i in range(len(flags)) if random.random() < 0.15}
        keys = {i: random.randint(0, 1) for i in range(len(flags)) if random.random() < 0.5}
        self.publish_events(
            flags,
            random.choice((0, 0, 15, 120)),
            producer=random.random() < 0.5,
            passing=passing if random.random() < 0.4 else set(),
            keys=keys,
        )

    def publish_events(
        self,
        persistent: list[bool],
        own_ttl: int,
        *,
        producer: bool,
        passing: set[int] = frozenset(),  # type: ignore[assignment]  # never changed
        keys: dict[int, int] | None = None,
    ) -> None:
        self.settle_time()
        count, first = len(persistent), self.play.channel.state.next_id
        kept = [
            self.kept(i, persistent[i], own_ttl, transient=i in passing, key=(keys or {}).get(i))
            for i in range(count)
        ]
        superseded = self.model.superseded(first, kept)
        digest = Digest(
            count,
            count * self.event_bytes,
            1,
            volatile=spans({i for i, flag in enumerate(persistent) if not flag}),
            transient=spans(set(passing)),
            ttls=((own_ttl, spans(set(range(0, count, 3)))),) if own_ttl else (),
            matched={"even": spans(set(range(0, count, 2)))},
            superseded=listed(IdSet.from_ids(superseded)) if superseded else b"",
        )
        self.sequence += 1
        command = Publish(digest, "p" if producer else "", self.sequence)
        if self.is_refused(kept, superseded):
            with pytest.raises(CapacityReached):
                self.do(command)
            return
        effects = self.play.do(command)
        span = self.play.answer
        assert isinstance(span, Span)
        self.appended(span, kept, superseded)
        if producer:
            self.stored_as[self.sequence] = span
        self.volatile_seen |= any(one.volatile or one.relayed for one in kept)
        self.watch(effects)

    def is_refused(self, kept: list[Kept], superseded: set[int]) -> bool:
        honoured = self.definition.storage.honour_capacity and self.model.capacity
        stays = len([one for one in kept if not one.relayed]) - len(superseded)
        return bool(honoured) and len(self.model.stored) + stays > self.model.capacity

    def appended(self, span: Span, kept: list[Kept], superseded: set[int]) -> None:
        self.model.appended(span.first, kept)
        for event_id in sorted(superseded):
            self.model.drop(event_id, Cause.REPLACED)
        if not self.definition.storage.honour_capacity:
            self.model.evict()

    def kept(
        self, offset: int, persistent: bool, own_ttl: int, transient: bool, key: int | None
    ) -> Kept:
        mixed = self.model.type == "mixed"
        in_memory = self.model.type in ("reliable", "simple", "off_heap")
        return Kept(
            self.play.now_us,
            even=offset % 2 == 0,
            volatile=in_memory or (mixed and not persistent),
            ttl_ms=own_ttl if mixed and offset % 3 == 0 else 0,
            key=key,
            relayed=self.model.type == "transient"
            or (transient and self.definition.kind == "channel"),
        )

    def retry(self, random: Random) -> None:
        if not self.stored_as:
            return
        sequence = random.choice(sorted(self.stored_as))
        self.settle_time()
        self.do(Publish(Digest(2, 2, 1), "p", sequence))

        assert self.play.answer == self.stored_as[sequence]
