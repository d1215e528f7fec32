"""Prefetch: the next events of a consumer are read while it processes the delivered ones.

A consumer that acknowledges a window to get the next one waits for the realm, and then the realm
waits for the consumer. Reading the events and building their bodies is half of the realm's work for
a window and does not depend on the acknowledgement, so it is done in the realm's idle time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock_core.channel.channel import ChannelMachine
from penstock_core.ids.ids import Span, Spans
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.store.state import RealmState

BYTES_MAX = 1 << 20
"""Deliveries of more bytes are not prefetched: they are few, so prefetching would save little."""
BATCH_BYTES_MAX = 8 << 20
"""Events of a batch with more bytes are not prefetched, because they would keep the whole batch in
memory."""
CHANNELS_MAX = 64
"""Largest number of channels whose last delivery is remembered. Beyond it, the channel whose last
delivery is oldest is dropped with its prefetched events."""


class ReadAhead:
    """Reads the predicted next delivery of each channel: as many events as the last delivery, with
    the ids that follow. Prefetched events are only used for a delivery of exactly these ids. They
    stay valid even if the channel changes, because the content of an event never changes.
    """

    def __init__(
        self,
        *,
        bytes_max: int = BYTES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        channels_max: int = CHANNELS_MAX,
    ) -> None:
        self._bytes_max, self._batch_bytes_max = bytes_max, batch_bytes_max
        self._channels_max = channels_max
        self._last: OrderedDict[int, Span] = OrderedDict()
        """The ids of the last delivery, by channel."""
        self.predicted: dict[int, Span] = {}
        """The predicted deliveries that :meth:`read` will prefetch, by channel."""
        self._ready: dict[int, tuple[Spans, Sequence[OutgoingBatch]]] = {}

    def __len__(self) -> int:
        """Number of channels whose last delivery is remembered."""
        return len(self._last)

    def delivered(self, channel_id: int, spans: Spans, rows: Sequence[OutgoingBatch]) -> None:
        """Record a delivery on a channel, and predict the next one after two adjacent deliveries of
        the same size."""
        before = self._last.get(channel_id)
        body_bytes = [part.made_bytes for part in rows]
        # No delivery is predicted after gaps, after a selection of events (whose bodies are not
        # built), or after too many bytes.
        if len(spans) > 1 or not all(body_bytes) or sum(body_bytes) > self._bytes_max:
            self.forget(channel_id)
            return
        span = self._last[channel_id] = spans[0]
        self._last.move_to_end(channel_id)
        if before is not None and before.end == span.first and before.size == span.size:
            self.predicted[channel_id] = Span(span.end, span.end + span.size)
        if len(self._last) > self._channels_max:
            self.forget(next(iter(self._last)))

    def take(self, channel_id: int, spans: Spans) -> Sequence[OutgoingBatch] | None:
        """Return the events of ``spans`` if they were prefetched. Other prefetched events of the
        channel are dropped, because the prediction was wrong."""
        ready = self._ready.pop(channel_id, None)
        return None if ready is None or ready[0] != spans else ready[1]

    def read(self, state: RealmState) -> None:
        """Read the predicted events that are in memory or in open files, because this call must not
        wait. Damaged events are not prefetched; the delivery that reads them reports the damage."""
        predicted, self.predicted = self.predicted, {}
        for channel_id, span in predicted.items():
            channel = state.channels.get(channel_id)
            if channel is None:
                self.forget(channel_id)
                continue
            store, damage = state.stores[channel_id], Damage()
            spans = channel.state.stored.within(span).spans
            if spans != (span,) or not _has_fixed_bytes(channel, store):
                continue
            files = list(store.files_for(spans))
            if any(not file.is_open for file in files):
                continue
            rows = store.read(spans, damage)
            holds_large_batch = not files and any(
                part.batch.get_total_buffer_size() > self._batch_bytes_max for part in rows
            )
            if holds_large_batch or damage.ids:
                continue
            if sum([len(part.body) for part in rows]) <= self._bytes_max:
                self._ready[channel_id] = spans, rows

    def forget(self, channel_id: int) -> None:
        """Drop the last delivery, the prediction and the prefetched events of a channel."""
        self._last.pop(channel_id, None)
        self.predicted.pop(channel_id, None)
        self._ready.pop(channel_id, None)


def _has_fixed_bytes(channel: ChannelMachine, store: ChannelStore) -> bool:
    """Whether the bytes of an event stay the same and in one place while it is stored. Page slots
    are reused, and a merge channel makes each delivery from the present state."""
    return channel.state.type.home == "journal" and not isinstance(store, MergeStore)
