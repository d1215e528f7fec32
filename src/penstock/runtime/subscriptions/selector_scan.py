"""Which stored events a selector matches: looked at in steps, between which others are served."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.columns.events.batch import ids_of, runs_of
from penstock.columns.selectors import EventFrame, Selector
from penstock.core.ids.ids import IdSet, Span
from penstock.core.vocabulary.ports import Clock
from penstock.runtime.access.askers import asker
from penstock.runtime.delivery.selection import patience
from penstock.runtime.store.message_fields import messages_of
from penstock.runtime.store.open_files import OpenFiles
from penstock.runtime.store.sealed_file import Damage
from penstock.runtime.writer.group import Group
from penstock.runtime.writer.shard import Shard
from penstock.runtime.writer.with_files import act_reading

SCAN_EVENTS = 65_536
"""Stored events that are read at once."""
_MANY = 64
"""With more gaps than this a set is made of ids, not of ranges."""

Among = Callable[[Group], IdSet]
"""The ids to look at, as they are now; may be changed."""


class Matching:
    """The events of one channel that a selector matches, found while the channel goes on.

    :meth:`look_ahead` looks at all there are, some of them in each turn of the single writer;
    :meth:`now` is for the turn that acts, and looks only at what has come since.
    """

    def __init__(self, selector: Selector | None, clock: Clock) -> None:
        self._selector = selector
        self._clock = clock
        self._looked = IdSet()
        self._found = IdSet()

    async def look_ahead(self, shard: Shard, files: OpenFiles, number: int, among: Among) -> None:
        """Raises ``NameDoesNotExist``, what ``among`` raises, ``LimitReached`` when one look takes
        too long, and ``ConnectionLost`` once whoever has asked has hung up."""
        end: int | None = None
        wanted_by = asker.get()

        def look(group: Group) -> bool:
            nonlocal end
            next_id = group.channel(number).state.next_id
            end = next_id if end is None else end  # what comes meanwhile is for the end
            left = among(group).within(Span(0, end))
            left.discard_all(self._looked)
            self._take_up(group, number, left)
            return bool(left)

        if self._selector is not None:
            while await act_reading(shard, files, number, look):
                wanted_by.check()

    def now(self, group: Group, number: int, among: Among) -> IdSet:
        """Those that match, of what is there at this moment."""
        there = among(group)
        if self._selector is None:
            return there
        left = there.copy()
        left.discard_all(self._looked)
        while left:
            self._take_up(group, number, left)
        return self._found.overlap(there)

    def _take_up(self, group: Group, number: int, left: IdSet) -> None:
        """Look at the first few of ``left``, and take them off it."""
        assert self._selector is not None, "without one everything matches"
        store, messages = group.state.stores[number], messages_of(group.channel(number))
        now_us = self._clock.now_us()
        part: list[Span] = []
        room = SCAN_EVENTS
        while room > 0 and (span := left.take(room)) is not None:
            part.append(span)
            room -= span.size
        check = patience(self._clock, part[0].first if part else 0)
        promising = store.promising(tuple(part), self._selector, now_us, messages)
        for rows in store.read(promising, Damage()) if promising else ():
            frame = EventFrame(rows.batch, now_us, messages, check=check)
            mask = self._selector.mask_in(frame)
            self._found.add_all(_chosen(rows.batch, mask))
        self._looked.add_all(IdSet(part))


def _chosen(batch: pa.RecordBatch, mask: pa.BooleanArray) -> IdSet:
    ids = ids_of(batch)[mask.to_numpy(zero_copy_only=False)]
    firsts, ends = runs_of(ids)
    if len(firsts) - 1 > _MANY:
        return IdSet.of(ids.tolist())
    return IdSet.of_runs(firsts.tolist(), ends.tolist())
