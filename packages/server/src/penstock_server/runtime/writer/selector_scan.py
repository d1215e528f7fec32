"""Finds the stored events that a selector matches, in steps between which others are served, and in
a thread where a step takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import LimitReached
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.delivery.selection import BESIDE_ABOVE, Choosing, cost_of, matching_ids
from penstock_server.runtime.store.message_fields import messages_of
from penstock_server.runtime.store.open_files import OpenFiles
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

SCAN_EVENTS = 65_536
"""Stored events that are read at once."""
CATCHING_UP_MAX: Final = 20
"""Most times that a scan continues with events that have come meanwhile."""
_BEHIND: Final = object()

Among = Callable[[Group], IdSet]
"""The ids to examine, as of now; the callee may change the set."""


class _ScanStep(Struct):
    """The events to examine next."""

    ids: Sequence[Span]
    rows: Sequence[OutgoingBatch]
    """The rows among them that may match."""
    messages: MessageAccess | None
    now_us: int


class Matching:
    """Finds the events of one channel that a selector matches, while the channel is in use.

    :meth:`act` examines all events before the single writer's turn; in the turn itself only the few
    that have come since are examined.
    """

    def __init__(
        self, selector: Selector, choosing: Choosing, shard: Shard, files: OpenFiles
    ) -> None:
        self.selector = selector
        self._choosing = choosing
        self._shard = shard
        self._files = files
        self._looked = IdSet()
        self._found = IdSet()

    async def act(
        self, number: int, among: Among, action: Callable[[Group], Any], *, room: int = 0
    ) -> Any:
        """Run ``action``, which may call :meth:`now`, once all events have been examined.

        Raises what ``action`` and ``among`` raise; ``NameDoesNotExist``; ``LimitReached`` when a
        step takes too long, or events come faster than they are examined; and ``ConnectionLost``
        once the client has disconnected.
        """

        def act(group: Group) -> Any:
            return _BEHIND if self._is_behind(group, number, among) else action(group)

        for _ in range(CATCHING_UP_MAX):
            await self.look_ahead(number, among)
            found = await with_open_files(self._shard, self._files, number, action=act, room=room)
            if found is not _BEHIND:
                return found
        raise LimitReached(
            "events come faster than the selector is put to them; make it simpler, or look at "
            "fewer events"
        )

    async def look_ahead(self, number: int, among: Among) -> None:
        """Raises what :meth:`act` does."""
        end: int | None = None
        wanted_by = asker.get()

        def read(group: Group) -> _ScanStep | None:
            nonlocal end
            next_id = group.channel(number).state.next_id
            # events that come meanwhile are for the next time
            end = next_id if end is None else end
            left = among(group).within(Span(0, end))
            left.discard_all(self._looked)
            return self._read(group, number, left) if left else None

        while (
            step := await with_open_files(self._shard, self._files, number, action=read)
        ) is not None:
            await self._look(step, wanted_by)
            wanted_by.check()

    def promising(self, group: Group, number: int, ids: IdSet) -> IdSet:
        """The subset of ``ids`` that may match, judged by summaries alone, without reading an
        event."""
        store, messages = group.state.stores[number], messages_of(group.channel(number))
        return IdSet(store.promising(ids.spans, self.selector, group.now_us, messages=messages))

    def has_looked(self, ids: IdSet) -> bool:
        """Whether all of these ids were examined."""
        left = ids.copy()
        left.discard_all(self._looked)
        return not left

    def matches_among(self, ids: IdSet) -> IdSet:
        """The subset of ``ids`` that matches; only ids that have been scanned are known."""
        return self._found.overlap(ids)

    def now(self, group: Group, number: int, among: Among) -> IdSet:
        """The ids that match at this moment. Reads what has come since the last scan."""
        there = among(group)
        left = there.copy()
        left.discard_all(self._looked)
        while left:
            step = self._read(group, number, left)
            left.discard_all(IdSet(step.ids))
            for rows in step.rows:
                frame = EventFrame(rows.batch, step.now_us, step.messages)
                self._found.add_all(matching_ids(rows.batch, self.selector.mask_in(frame)))
            self._looked.add_all(IdSet(step.ids))
        return self._found.overlap(there)

    def _is_behind(self, group: Group, number: int, among: Among) -> bool:
        """Whether too many events have come to examine them within a turn."""
        left = among(group)
        left.discard_all(self._looked)
        if not left:
            return False
        size = max(1.0, group.channel(number).state.event_bytes)
        count = len(left)
        return cost_of(self.selector, count, int(count * size)) > BESIDE_ABOVE

    def _read(self, group: Group, number: int, ids: IdSet) -> _ScanStep:
        """The first few of ``ids``, which stay as they are."""
        left = ids.copy()
        part: list[Span] = []
        room = SCAN_EVENTS
        while room > 0 and (span := left.take(room)) is not None:
            part.append(span)
            room -= span.size
        promising = self.promising(group, number, IdSet(part)).spans
        rows = group.state.stores[number].read(promising, Damage()) if promising else ()
        return _ScanStep(part, rows, messages_of(group.channel(number)), now_us=group.now_us)

    async def _look(self, step: _ScanStep, wanted_by: Asker) -> None:
        for rows in step.rows:
            mask = await self._choosing.mask(
                rows.batch,
                self.selector,
                step.now_us,
                messages=step.messages,
                still=wanted_by.check,
            )
            self._found.add_all(matching_ids(rows.batch, mask))
        self._looked.add_all(IdSet(step.ids))
