"""Sends events to clients on native connections."""

from __future__ import annotations

from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.peer import NativePeer
from penstock_server.frontends.shared.parts import ConnectionPart
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch


class SubscriptionOutlet:
    """The outlet of one subscription of a connection."""

    def __init__(
        self, connection: NativePeer, client_number: int, selector: Selector | None
    ) -> None:
        self._connection = connection
        self.client_number = client_number
        self.session = connection.session
        self.selector = selector

    @property
    def is_writable(self) -> bool:
        return self._connection.is_writable

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        self._connection.deliveries.send(self.client_number, rows, redeliveries)

    def recall(self, spans: Spans) -> None:
        self._connection.send(wire.Recalled(self.client_number, spans))

    def finished(self) -> None:
        self._connection.send(wire.Finished(self.client_number))

    def closed(self, reason: PenstockError) -> None:
        self._connection.forget(self.client_number)
        self._connection.send(wire.Closed(self.client_number, reason.code, str(reason)))


class Deliveries(ConnectionPart[NativePeer]):
    """The deliveries of one connection. Each schema is sent once, before its first events."""

    def __init__(self, connection: NativePeer) -> None:
        super().__init__(connection)
        self._announced: set[int] = set()

    def send(
        self, number: int, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]
    ) -> None:
        """Send events to the subscription with the client's ``number``, with redelivery counts of
        events that have already been delivered."""
        connection = self._connection
        schemas = connection.realm.view.schemas
        schema = (
            rows.tail_batch.schema_id if rows.tail_batch else schemas.transient(rows.batch.schema)
        )
        if schema not in self._announced:
            arrow = rows.tail_batch.schema if rows.tail_batch else rows.batch.schema
            self._announced.add(schema)
            connection.send(wire.Schema(schema), schemas.bytes_of(schema, arrow))
        counts = redeliveries
        if redeliveries:
            sent = Span(rows.spans[0][0], rows.spans[-1][1])
            counts = tuple(
                (count, part) for count, spans in redeliveries if (part := _within(spans, sent))
            )
        body = rows.body
        connection.send(
            wire.Delivery(
                number,
                schema,
                rows.count,
                first_id=rows.first_id,
                at_us=rows.at_us,
                redeliveries=counts,
                publishers=rows.publishers,
            ),
            body,
        )


def _within(spans: Spans, limits: Span) -> Spans:
    """Return the part of ``spans`` inside ``limits``; a client needs counts only for the events it
    receives."""
    if limits.first <= spans[0][0] and spans[-1][1] <= limits.end:
        return spans  # the usual case
    parts = [Span(*span).clipped(limits) for span in spans]
    return tuple(part for part in parts if part.size)
