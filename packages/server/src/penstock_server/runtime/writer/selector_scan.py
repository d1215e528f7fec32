"""Finds the stored events that a selector matches, in steps so that the writer serves others in
between. A step that takes long runs in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import LimitReached
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.delivery.selection import Choosing, cost_of, matching_ids
from penstock_server.runtime.store.message_fields import messages_of
from penstock_server.runtime.store.open_files import OpenFiles
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

CATCHING_UP_MAX: Final = 20
"""Limit on the scans of one request: each continues with events published since the previous
scan."""
_BEHIND: Final = object()
"""Answer of a turn that has found too many unexamined events."""

Among = Callable[[Group], IdSet]
"""Returns the ids to examine at this moment, as a set that the caller may change."""


class _ScanStep(Struct):
    """The events to examine next."""

    ids: Sequence[Span]
    rows: Sequence[OutgoingBatch]
    """The rows of these events that may match."""
    messages: MessageAccess | None
    now_us: int


class Matching:
    """Finds the events of one channel that a selector matches, while the channel is in use.

    :meth:`act` examines all events before the single writer's turn. In the turn itself only the few
    events published since are examined.
    """

    def __init__(
        self, selector: Selector, choosing: Choosing, shard: Shard, files: OpenFiles
    ) -> None:
        self.selector = selector
        self._choosing = choosing
        self._shard = shard
        self._files = files
        self._examined = IdSet()
        self._matched = IdSet()

    async def act(
        self, channel_id: int, among: Among, action: Callable[[Group], Any], *, room: int = 0
    ) -> Any:
        """Run ``action``, which may call :meth:`now`, once all events have been examined.

        Raises what ``action`` and ``among`` raise; ``NameDoesNotExist``; ``LimitReached`` when a
        step takes too long, or events come faster than they are examined; and ``ConnectionLost``
        once the client has disconnected.
        """

        def act(group: Group) -> Any:
            return _BEHIND if self._is_behind(group, channel_id, among) else action(group)

        for _ in range(CATCHING_UP_MAX):
            await self.examine_ahead(channel_id, among)
            result = await with_open_files(
                self._shard, self._files, channel_id, action=act, room=room
            )
            if result is not _BEHIND:
                return result
        raise LimitReached(
            "events are published faster than the selector can examine them; simplify the "
            "selector, or select fewer events"
        )

    async def examine_ahead(self, channel_id: int, among: Among) -> None:
        """Examine all events that are stored when the scan begins. Raises the errors of
        :meth:`act`."""
        end: int | None = None
        wanted_by = asker.get()

        def read(group: Group) -> _ScanStep | None:
            nonlocal end
            next_id = group.channel(channel_id).state.next_id
            # Events published during the scan wait for the next scan, so that this one ends.
            end = next_id if end is None else end
            remaining = among(group).within(Span(0, end))
            remaining.discard_all(self._examined)
            return self._read(group, channel_id, remaining) if remaining else None

        while (
            step := await with_open_files(self._shard, self._files, channel_id, action=read)
        ) is not None:
            await self._examine(step, wanted_by)
            wanted_by.check()

    def promising(self, group: Group, channel_id: int, ids: IdSet) -> IdSet:
        """Return the subset of ``ids`` that may match, judged by the summaries of files alone."""
        store, messages = group.state.stores[channel_id], messages_of(group.channel(channel_id))
        return IdSet(store.promising(ids.spans, self.selector, group.now_us, messages=messages))

    def has_examined(self, ids: IdSet) -> bool:
        """Whether all of these ids were examined."""
        remaining = ids.copy()
        remaining.discard_all(self._examined)
        return not remaining

    def matches_among(self, ids: IdSet) -> IdSet:
        """Return the subset of ``ids`` that matches. Ids that were not examined are left out."""
        return self._matched.overlap(ids)

    def now(self, group: Group, channel_id: int, among: Among) -> IdSet:
        """Return the ids that match at this moment. Examines events published since the last
        scan."""
        ids = among(group)
        remaining = ids.copy()
        remaining.discard_all(self._examined)
        while remaining:
            step = self._read(group, channel_id, remaining)
            remaining.discard_all(IdSet(step.ids))
            for rows in step.rows:
                frame = EventFrame(rows.batch, step.now_us, step.messages)
                self._matched.add_all(matching_ids(rows.batch, self.selector.mask_in(frame)))
            self._examined.add_all(IdSet(step.ids))
        return self._matched.overlap(ids)

    def _is_behind(self, group: Group, channel_id: int, among: Among) -> bool:
        """Whether too many events are unexamined to examine them within a turn."""
        remaining = among(group)
        remaining.discard_all(self._examined)
        if not remaining:
            return False
        size = max(1.0, group.channel(channel_id).state.event_bytes)
        count, limits = len(remaining), self._choosing.limits
        return cost_of(self.selector, count, int(count * size)) > limits.thread_above

    def _read(self, group: Group, channel_id: int, ids: IdSet) -> _ScanStep:
        """Read the next events to examine, the first of ``ids``. Does not change ``ids``."""
        remaining = ids.copy()
        part: list[Span] = []
        events_left = self._choosing.limits.scan_events
        while events_left > 0 and (span := remaining.take(events_left)) is not None:
            part.append(span)
            events_left -= span.size
        promising = self.promising(group, channel_id, IdSet(part)).spans
        rows = group.state.stores[channel_id].read(promising, Damage()) if promising else ()
        return _ScanStep(part, rows, messages_of(group.channel(channel_id)), now_us=group.now_us)

    async def _examine(self, step: _ScanStep, wanted_by: Asker) -> None:
        """Evaluate the selector on the events of a step, and record the result."""
        for rows in step.rows:
            mask = await self._choosing.mask(
                rows.batch,
                self.selector,
                step.now_us,
                messages=step.messages,
                still=wanted_by.check,
            )
            self._matched.add_all(matching_ids(rows.batch, mask))
        self._examined.add_all(IdSet(step.ids))
