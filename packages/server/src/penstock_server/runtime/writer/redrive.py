"""Redrive: publishes dead events again, to a destination or to where they came from (SEM T10).

Each step publishes some events and removes them from the dead event store, both in one block, so
that each is published once. To continue an interrupted redrive, start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.api.joins import Redriven
from penstock_core.channel.dead import MOVED_WORK, READ_BYTES_MAX, moved_at_once
from penstock_core.columns.events.batch import ids_of, within
from penstock_core.columns.events.origin import origins_of, restored
from penstock_core.columns.schema import compute as pc
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.retention import Quarantine, RemoveRedriven
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.bodies import UNLIMITED, digest_of
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.writer.dead_events import by_publisher, runs
from penstock_server.runtime.writer.evaluation_ahead import needs_evaluation
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_selectors import selectors_of
from penstock_server.runtime.writer.removals import free_of
from penstock_server.runtime.writer.room_forecast import bytes_of_redrive, side_effect_bytes
from penstock_server.runtime.writer.selector_scan import Matching
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

CONGESTION_POLL_S: Final = 0.05
"""Seconds between two checks whether the realm is congested."""
EventsByPublisher = list[tuple[str, pa.RecordBatch]]
"""Events to redrive, in order: each publisher with a batch of its events."""

MayPublish = Callable[[str, str], None]
"""Called with the kind and name of a store. Raises ``AccessDenied`` if the requesting client may
not publish there."""


class Redriving:
    """The realm's operation to redrive dead events."""

    def __init__(self, shard: Shard, dispatch: Dispatch) -> None:
        self._shard = shard
        self._files = dispatch.files
        self._choosing = dispatch.choosing
        self._stepping = asyncio.Lock()
        """Held during a step, so that one step runs at a time: the steps of several redrives would
        become one group, with the events of all of them in memory."""

    async def redrive(
        self,
        source: str,
        destination: str,
        selector: str,
        *,
        dry_run: bool,
        may: MayPublish | None = None,
    ) -> Redriven:
        """Publish the dead events that a selector matches to ``destination``, or each to its
        origin; those without an origin stay. ``may`` is called for each destination.

        Raises what ``may`` raises, ``NameDoesNotExist`` and ``InvalidArgument``. Also raises
        ``CapacityReached`` (nothing is evicted for redriven events), ``MemoryLimit``,
        ``StorageFailed`` (the disk is full) and ``LimitReached`` (the selector takes too long).
        Events moved before an error stay moved.
        """
        matching = None
        if selector:
            parsed_selector = await self._choosing.parse(selector)
            matching = Matching(parsed_selector, self._choosing, self._shard, files=self._files)
        channel_id = await self._shard.act(lambda group: _check_source(group, source, destination))
        moved: Counter[str] = Counter()
        position = writes = 0
        end: int | None = None
        while end is None or position < end:
            # After a step that needed more bytes than were reserved, reserve what it needed.
            room = 0 if dry_run else max(writes, self._bytes_to_reserve(channel_id, destination))
            step = _Step(channel_id, destination, matching, dry_run=dry_run, room=room, may=may)
            if matching is not None:
                await matching.examine_ahead(
                    channel_id, partial(step.next_ids, at=position, end=end)
                )
            run = partial(step.run, at=position, end=end)
            async with self._stepping:
                if not dry_run:
                    await self._wait_while_congested()
                position, end = await with_open_files(
                    self._shard, self._files, channel_id, action=run, room=room
                )
            writes = step.writes
            moved.update(step.moved)
        remaining = await self._shard.act(lambda group: len(group.channel(channel_id).state.stored))
        if dry_run:
            remaining -= moved.total()
        return Redriven(moved.total(), dict(moved), remaining, dry_run=dry_run)

    async def _wait_while_congested(self) -> None:
        """Wait while the realm is congested, as publishers do, or until the realm ends."""
        while self._shard.is_congested() and not self._shard.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shard.ended.wait(), CONGESTION_POLL_S)

    def _bytes_to_reserve(self, channel_id: int, destination: str) -> int:
        """Return the bytes to reserve for a step."""
        state = self._shard.state
        if channel_id not in state.channels:
            return 0
        target = state.directory.find(destination) if destination else None
        return bytes_of_redrive(state, channel_id, target)


class _Step:
    """One step of a redrive: some events, in one block."""

    def __init__(
        self,
        channel_id: int,
        destination: str,
        matching: Matching | None,
        *,
        dry_run: bool,
        room: int,
        may: MayPublish | None,
    ) -> None:
        self.may = may
        self.room = room
        """Bytes that the step may write. A step that needs more changes nothing, and sets
        :attr:`writes` to the bytes that the next attempt must reserve."""
        self.writes = 0
        """Bytes that the step writes to other stores."""
        self.channel_id = channel_id
        self.destination = destination
        self.matching = matching
        self.dry_run = dry_run
        self.moved: Counter[str] = Counter()

    def run(self, group: Group, at: int, end: int | None) -> tuple[int, int]:
        """Run the step on events with ids from ``at`` to below ``end``. Return the id where the
        next step begins, and the id where the redrive ends. Both are equal when the redrive is
        done; the first is ``at`` if this step has done nothing and must run again."""
        group.sweep(self.channel_id)
        state = group.channel(self.channel_id).state
        if end is None:
            end = state.next_id  # later events are left to the next redrive, so that this one ends
        store = group.state.stores[self.channel_id]
        work = self._relative_cost(group)
        ids = self._next_ids(group, at, end, work=work)
        if not ids:
            return end, end
        if self.matching is not None and not self.matching.has_examined(ids):
            return at, end  # a reader has released further events since the scan: scan again
        by_target: dict[int, EventsByPublisher] = {}
        moved_ids = IdSet()
        damage = Damage()
        ids, read = store.read_lowest(ids, READ_BYTES_MAX / work, damage)
        for rows in read:
            for target, batch in self._parts(group, rows):
                by_target.setdefault(target, []).extend(by_publisher(batch, rows.publishers))
                moved_ids.add_all(IdSet.from_ids(ids_of(batch).tolist()))
        # All that may fail comes before the first publish: rights here, selectors and limits in
        # `_publish`. After it the step cannot be undone.
        self._check_rights(group, by_target)
        if moved_ids and not self.dry_run and not self._publish(group, by_target, moved_ids):
            return at, end
        if damage.ids and not self.dry_run:
            store.quarantined += damage.reasons
            group.do(self.channel_id, Quarantine(damage.ids.spans))
        for target, parts in by_target.items():
            name = group.state.channels[target].state.name
            self.moved[name] += sum(batch.num_rows for _, batch in parts)
        highest = ids.highest
        assert highest is not None, "ids is not empty"
        return highest + 1, end

    def next_ids(self, group: Group, at: int, end: int | None) -> IdSet:
        """Return the ids that a step examines, matching or not."""
        return self._next_ids(group, at, end, work=self._relative_cost(group))

    def _next_ids(self, group: Group, at: int, end: int | None, work: float) -> IdSet:
        """Return the ids from ``at`` to below ``end`` that a step may move, if an event costs
        ``work`` times as much as usual."""
        state = group.channel(self.channel_id).state
        free = free_of(state, state.stored.within(Span(at, state.next_id if end is None else end)))
        if self.matching is not None:
            free = self.matching.promising(group, self.channel_id, free)
        return moved_at_once(state, free, work=work)

    def _relative_cost(self, group: Group) -> float:
        """Return the cost of an event of this redrive as a multiple of the usual cost. The factor
        is above 1 if many selectors are evaluated on the event or joins copy it to many stores.
        Steps become smaller by this factor."""
        directory = group.state.directory
        targets: Iterable[int] = group.state.channels
        if self.destination:
            targets = (directory.channel_id_of(self.destination),)
        works = (sum(selectors_of(group.state, target).values()) for target in targets)
        work = max(1.0, max(works, default=0) / MOVED_WORK)
        joins = directory.joins
        reached = [
            len(joins.reached_from(target)) for target in targets if target in joins.by_source
        ]
        return max(work, *reached, 1)

    def _check_rights(self, group: Group, targets: Iterable[int]) -> None:
        """Call ``may`` for each target. Raises ``AccessDenied``."""
        if self.may is None:
            return
        for target in targets:
            state = group.state.channels[target].state
            self.may(state.definition.kind, state.name)

    def _publish(
        self, group: Group, by_target: dict[int, EventsByPublisher], moved_ids: IdSet
    ) -> bool:
        """Publish the events and remove them from their store. Return False and change nothing if
        the events need more bytes than :attr:`room`. Raises ``NeedsEvaluation`` and the errors of
        ``Group.check``."""
        known_outcomes = partial(group.match_cache.known_of, self.channel_id)
        for target, parts in by_target.items():
            selectors = selectors_of(group.state, target)
            evaluation = needs_evaluation(
                group, self.channel_id, [batch for _, batch in parts], selectors=selectors
            )
            if evaluation is not None:
                raise evaluation
        runs_by_target = {
            target: list(runs(parts, restored, known_outcomes))
            for target, parts in by_target.items()
        }
        bodies_by_target = {
            target: [body for _, bodies in parts for body in bodies]
            for target, parts in runs_by_target.items()
        }
        self.writes = sum(
            sum(len(body.buffer) for body in bodies)
            + side_effect_bytes(group.state, target, bodies)
            for target, bodies in bodies_by_target.items()
        )
        if self.writes > self.room:
            return False
        group.check(
            {
                target: (bodies, digest_of(bodies, UNLIMITED))
                for target, bodies in bodies_by_target.items()
            },
            evicts=False,
        )
        # The check above has admitted the events, so nothing refuses them here.
        for target, parts in runs_by_target.items():
            for publisher, bodies in parts:
                group.publish(
                    target,
                    bodies,
                    digest_of(bodies, UNLIMITED),
                    forced=True,
                    in_journal=True,
                    publisher=publisher,
                )
        spans = moved_ids.spans
        group.do(self.channel_id, RemoveRedriven(spans))
        group.match_cache.forget(self.channel_id, spans)
        return True

    def _parts(self, group: Group, rows: OutgoingBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
        """Return the events to publish again, by the id of the store to publish them on. Events
        without such a store are left out."""
        batch = rows.batch
        if self.matching is not None:
            matching = self.matching.matches_among(IdSet(rows.spans))
            batch = batch.filter(pa.array(within(ids_of(batch), matching.spans)))
        if not batch.num_rows:
            return ()
        directory = group.state.directory
        if self.destination:
            return ((directory.channel_id_of(self.destination), batch),)
        origins = origins_of(batch)
        parts = []
        for name in pc.unique(origins).to_pylist():
            target = directory.find(name) if name else None
            # A redrive from a store to itself has no effect.
            # Events whose origin is not known, or no longer exists, stay where they are.
            if target is not None and target != self.channel_id:
                mask = np.asarray(pc.equal(origins, name).fill_null(fill_value=False))
                parts.append((target, batch.filter(pa.array(mask))))
        return parts


def _check_source(group: Group, source: str, destination: str) -> int:
    directory = group.state.directory
    channel_id = directory.channel_id_of(source)
    if destination and directory.channel_id_of(destination) == channel_id:
        raise InvalidArgument(f"a redrive from {source} to itself has no effect")
    return channel_id
