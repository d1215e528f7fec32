"""Redrive: dead events are published again where they are wanted (SEM T10).

Each step publishes some events and removes them from the dead event store in one block, each once.
A redrive that was interrupted continues when it is asked for again.
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

WAITS_S: Final = 0.05
"""Seconds between two looks at whether a step may be taken."""
Wanted = list[tuple[str, pa.RecordBatch]]
"""Events, in order, with who published them."""

MayPublish = Callable[[str, str], None]
"""Given a kind and a name: raises ``AccessDenied`` where who asks may not publish."""


class Redriving:
    def __init__(self, shard: Shard, dispatch: Dispatch) -> None:
        self._shard = shard
        self._files = dispatch.files
        self._choosing = dispatch.choosing
        self._stepping = asyncio.Lock()
        """One redrive takes a step at a time: the steps of several would be one group, which holds
        all of them in memory."""

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

        Raises what ``may`` raises, ``NameDoesNotExist``, ``InvalidArgument``; and
        ``CapacityReached`` (nothing is evicted for them), ``MemoryLimit``, ``StorageFailed`` (the
        disk is full) or ``LimitReached`` (the selector takes too long). What was moved before then
        stays moved.
        """
        wanted = None
        if selector:
            chosen = await self._choosing.parse(selector)
            wanted = Matching(chosen, self._choosing, self._shard, files=self._files)
        number = await self._shard.act(lambda group: _checked(group, source, destination))
        moved: Counter[str] = Counter()
        at = writes = 0
        end: int | None = None
        while end is None or at < end:
            room = 0 if dry_run else max(writes, self._room(number, destination))
            step = _Step(number, destination, wanted, dry_run=dry_run, room=room, may=may)
            if wanted is not None:
                await wanted.look_ahead(number, partial(step.next_ids, at=at, end=end))
            run = partial(step.run, at=at, end=end)
            async with self._stepping:
                if not dry_run:
                    await self._has_its_turn()
                at, end = await with_open_files(
                    self._shard, self._files, number, action=run, room=room
                )
            writes = step.writes
            moved.update(step.moved)
        left = await self._shard.act(lambda group: len(group.channel(number).state.stored))
        if dry_run:
            left -= moved.total()
        return Redriven(moved.total(), dict(moved), left, dry_run=dry_run)

    async def _has_its_turn(self) -> None:
        """Wait as those who publish do, unless the realm ends meanwhile."""
        while self._shard.is_congested() and not self._shard.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shard.ended.wait(), WAITS_S)

    def _room(self, number: int, destination: str) -> int:
        """Bytes to be kept free for a step."""
        state = self._shard.state
        if number not in state.channels:
            return 0
        target = state.directory.find(destination) if destination else None
        return bytes_of_redrive(state, number, target)


class _Step:
    """Some events of a redrive, in one block."""

    def __init__(
        self,
        number: int,
        destination: str,
        wanted: Matching | None,
        *,
        dry_run: bool,
        room: int,
        may: MayPublish | None,
    ) -> None:
        self.may = may
        self.room = room
        """Bytes it may write. It does nothing where that is too little, to be asked again."""
        self.writes = 0
        self.number = number
        self.destination = destination
        self.wanted = wanted
        self.dry_run = dry_run
        self.moved: Counter[str] = Counter()

    def run(self, group: Group, at: int, end: int | None) -> tuple[int, int]:
        """Gives where to go on, and where it will end."""
        group.sweep(self.number)
        state = group.channel(self.number).state
        if end is None:
            end = state.next_id  # events that come meanwhile are for the next redrive
        store = group.state.stores[self.number]
        work = self._work(group)
        ids = self._next_ids(group, at, end, work=work)
        if not ids:
            return end, end
        if self.wanted is not None and not self.wanted.has_looked(ids):
            return at, end  # some have become free only now
        by_target: dict[int, Wanted] = {}
        gone = IdSet()
        damage = Damage()
        ids, read = store.read_lowest(ids, READ_BYTES_MAX / work, damage)
        for rows in read:
            for target, batch in self._parts(group, rows):
                by_target.setdefault(target, []).extend(by_publisher(batch, rows.publishers))
                gone.add_all(IdSet.from_ids(ids_of(batch).tolist()))
        self._ask(group, by_target)
        if gone and not self.dry_run and not self._publish(group, by_target, gone):
            return at, end
        if damage.ids and not self.dry_run:
            store.quarantined += damage.reasons
            group.do(self.number, Quarantine(damage.ids.spans))
        for target, parts in by_target.items():
            name = group.state.channels[target].state.name
            self.moved[name] += sum(batch.num_rows for _, batch in parts)
        highest = ids.highest
        assert highest is not None, "there are some"
        return highest + 1, end

    def next_ids(self, group: Group, at: int, end: int | None) -> IdSet:
        """The ids that a step examines, matching or not."""
        return self._next_ids(group, at, end, work=self._work(group))

    def _next_ids(self, group: Group, at: int, end: int | None, work: float) -> IdSet:
        state = group.channel(self.number).state
        free = free_of(state, state.stored.within(Span(at, state.next_id if end is None else end)))
        if self.wanted is not None:
            free = self.wanted.promising(group, self.number, free)
        return moved_at_once(state, free, work=work)

    def _work(self, group: Group) -> float:
        """How many times more work than usual a step is, because selectors examine its events
        often, or because joins copy each to many stores."""
        directory = group.state.directory
        targets: Iterable[int] = group.state.channels
        if self.destination:
            targets = (directory.channel_id_of(self.destination),)
        own = (sum(selectors_of(group.state, each).values()) for each in targets)
        work = max(1.0, max(own, default=0) / MOVED_WORK)
        joins = directory.joins
        reached = [len(joins.reached_from(each)) for each in targets if each in joins.by_source]
        return max(work, *reached, 1)

    def _ask(self, group: Group, targets: Iterable[int]) -> None:
        """Raises ``AccessDenied``."""
        if self.may is None:
            return
        for target in targets:
            there = group.state.channels[target].state
            self.may(there.definition.kind, there.name)

    def _publish(self, group: Group, by_target: dict[int, Wanted], gone: IdSet) -> bool:
        """Whether there was room for it."""
        known = partial(group.match_cache.known_of, self.number)
        for target, parts in by_target.items():
            asked = selectors_of(group.state, target)
            look = needs_evaluation(
                group, self.number, [batch for _, batch in parts], selectors=asked
            )
            if look is not None:
                raise look
        run_by = {target: list(runs(parts, restored, known)) for target, parts in by_target.items()}
        all_of = {
            target: [body for _, bodies in parts for body in bodies]
            for target, parts in run_by.items()
        }
        self.writes = sum(
            sum(len(body.buffer) for body in bodies)
            + side_effect_bytes(group.state, target, bodies)
            for target, bodies in all_of.items()
        )
        if self.writes > self.room:
            return False
        group.check(
            {target: (bodies, digest_of(bodies, UNLIMITED)) for target, bodies in all_of.items()},
            evicts=False,
        )
        for target, parts in run_by.items():
            for publisher, bodies in parts:
                group.publish(
                    target,
                    bodies,
                    digest_of(bodies, UNLIMITED),
                    forced=True,
                    in_journal=True,
                    publisher=publisher,
                )
        spans = gone.spans
        group.do(self.number, RemoveRedriven(spans))
        group.match_cache.moved(self.number, spans)
        return True

    def _parts(self, group: Group, rows: OutgoingBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
        batch = rows.batch
        if self.wanted is not None:
            matching = self.wanted.matches_among(IdSet(rows.spans))
            batch = batch.filter(pa.array(within(ids_of(batch), matching.spans)))
        if not batch.num_rows:
            return ()
        directory = group.state.directory
        if self.destination:
            return ((directory.channel_id_of(self.destination), batch),)
        origins = origins_of(batch)
        found = []
        for name in pc.unique(origins).to_pylist():
            target = directory.find(name) if name else None
            if target is not None and target != self.number:
                mask = np.asarray(pc.equal(origins, name).fill_null(fill_value=False))
                found.append((target, batch.filter(pa.array(mask))))
        return found


def _checked(group: Group, source: str, destination: str) -> int:
    directory = group.state.directory
    number = directory.channel_id_of(source)
    if destination and directory.channel_id_of(destination) == number:
        raise InvalidArgument(f"a redrive from {source} to itself has no effect")
    return number
