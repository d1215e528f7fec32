"""Links that send events to clients: queue readers, subscribers, clients of durables, browsers."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from penstock_amqp.addresses import LinkDestination
from penstock_amqp.conditions import (
    INVALID,
    STOLEN,
    TOO_LARGE,
    condition_of_attached,
    description_of,
)
from penstock_amqp.kept_messages import KeptMessages
from penstock_amqp.link_ends import OutgoingLink
from penstock_amqp.modified import annotated
from penstock_amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, Outcome
from penstock_amqp.peer import AmqpPeer
from penstock_core.api.requests import Request
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.loggers import logger
from penstock_core.vocabulary.backoff import DELAY_MS_MAX
from penstock_core.vocabulary.errors import IllegalState, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.writer.requests import Reply
from penstock_server.runtime.writer.unit_of_work import Acknowledged

_log = logger("penstock.amqp")


class ConsumerMode(Struct, frozen=True):
    """Properties of a consumer that decide how its events are held and settled."""

    has_seat: bool
    """Whether the consumer has a seat at a queue or durable, so that the realm tracks its events in
    flight."""
    cumulative: bool = False
    """Whether the acknowledgement of an event includes all earlier events."""
    browse: bool = False
    """Whether the consumer gets copies, which it cannot consume."""

    @property
    def keeps_unsettled(self) -> bool:
        """Whether the link keeps unsettled events and delivers returned ones again itself, because
        the realm would not, or only at the next attach."""
        return not self.browse and (self.cumulative or not self.has_seat)


class ConsumerTransactions(Protocol):
    """The part of a transaction coordinator that consumers use."""

    def add_outcome(self, name: bytes, consumer: Consumer, outcome: Outcome) -> None:
        """Add the outcome of a delivery to a transaction."""
        ...


class ConsumerPeer(AmqpPeer, Protocol):
    """The part of a connection that consumers use."""

    session: str
    is_writable: bool
    """Whether the connection can take more messages now."""

    @property
    def transactions(self) -> ConsumerTransactions: ...

    def flush_soon(self) -> None:
        """Send pending output at the end of this turn of the event loop, or with the answers of a
        group."""
        ...


class Consumer:
    """A link that sends events to a client; an outlet of the realm."""

    def __init__(
        self,
        connection: ConsumerPeer,
        number: ChannelId,
        mode: ConsumerMode,
        selector: Selector | None,
        *,
        no_local: bool = False,
    ) -> None:
        self._connection = connection
        self._service = connection.service
        self._realm = connection.service.realm
        self.number = number
        """Id of the channel or queue."""
        self.mode = mode
        self.session = connection.session
        self.selector = selector
        self.subscription = 0
        """Number of the subscription or seat in the realm."""
        self.reader: Hashable = self
        """Owner of the annotations that receivers add to returned messages: this consumer, or the
        durable or queue, whose clients share them."""
        self.link: OutgoingLink | None = None
        self.needs: tuple[type[Request[Any]], LinkDestination] | None = None
        """The request that opened the consumer, to which the user must keep the right, and its
        destination."""
        self.confirms = False
        """Whether the consumer reports settled ids to the realm, so that it can resume after a lost
        connection (SEM J5)."""
        self._confirming: deque[list[int]] = deque()
        """Ids in reports that the realm has not answered yet."""
        self.is_over = False
        self._no_local = no_local
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Ids and messages of the events that wait for credit."""
        self.kept = KeptMessages()
        """Messages delivered and not settled."""
        self._granted = 0
        """Credit granted to the realm and not used yet; only for consumers without a seat."""
        self._through = -1
        """Highest id of the acknowledged prefix; only for cumulative consumers."""
        self._newest = -1
        """Highest id of the events that the realm has delivered."""
        self._is_full = False
        """Whether the limit of unsettled deliveries, not the client's credit, bounds the room."""
        self._is_grant_requested = False
        """Whether the realm has been asked to deliver, and has not read the room yet."""

    # --- the realm's side ----------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return self._connection.is_writable

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Deliver events. Never raises, because the caller also serves other consumers."""
        with self._connection.containing:
            self._deliver(rows, redeliveries)

    def recall(self, spans: Spans) -> None:
        """Take events back, because the durable was moved to another position and delivers some of
        them again. Events that wait for credit are dropped, and later outcomes of events in flight
        have no effect."""
        with self._connection.containing:
            recalled = IdSet(spans)
            self._waiting = deque(
                held_event for held_event in self._waiting if held_event[0] not in recalled
            )
            if self.mode.cumulative:  # a seek may go back to acknowledged events
                self.kept.forget_all(recalled)
                self._through = self._newest = -1
            self._realm.subscriptions.recall_seen(self.subscription)
            self.flow()

    def finished(self) -> None:
        """Return the rest of a draining link's credit, because no more events are available."""
        with self._connection.containing:
            link = self.link
            if link is not None and link.is_draining:
                self._connection.engine.answer_drain(link)
                self._connection.flush_soon()

    def closed(self, reason: PenstockError) -> None:
        """End the link, because the realm has ended the subscription."""
        self.is_over = True
        with self._connection.containing:
            if self.link is not None:
                condition = condition_of_attached(reason)
                self._connection.end_link(self.link, condition, description_of(reason))

    def _deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        link = self.link
        messages = self._service.messages.messages_of(rows)
        ids = messages.ids
        if not self.mode.has_seat:
            self._granted -= len(ids)
        if self.is_over or link is None or link.is_over:
            return
        # The hot loop: attributes are read once, and kept bytes are counted once per batch.
        counts = _redelivery_counts(redeliveries, ids) if redeliveries else {}
        own_container = self._connection.container if self._no_local else None
        credit, send = link.credit, self._connection.engine.send
        keeps, size_max = self.mode.keeps_unsettled and not link.settled, link.message_bytes_max
        skipped: list[int] = []
        sent: list[int] = []
        kept, kept_bytes = self.kept.by_id, 0
        for row, event_id in enumerate(ids):
            if own_container and messages.containers[row] == own_container:
                skipped.append(event_id)
                continue
            count = counts.get(event_id, 0)
            message = self._message(event_id, messages.message(row, count))
            if len(message) > size_max:
                self._too_large(ids[row:], len(message))
                break
            if keeps:
                size = len(message)
                kept[event_id] = (messages, row, count, size)
                kept_bytes += size
            if credit > 0 and not self._waiting:
                send(link, event_id, message)
                sent.append(event_id)
                credit -= 1
            else:
                self._waiting.append((event_id, message))
        self.kept.count_added(kept_bytes)
        self._newest = max(self._newest, ids[-1])
        if skipped:
            self._pass_over(skipped)
        if link.settled and sent:
            self.acknowledge(sent)
        self._connection.flush_soon()

    def _too_large(self, ids: list[int], size: int) -> None:
        """End the link, because the next event is larger than the client accepts. Unsent events do
        not count as delivered (2.7.3)."""
        link = self.link
        assert link is not None, "events are delivered only on a link"
        if self.mode.has_seat and not self.mode.keeps_unsettled:
            self.give_back(ids, counted=False)
        self._connection.end_link(
            link,
            TOO_LARGE,
            f"event {ids[0]} needs a message of {size} bytes; this link accepts at most "
            f"{link.message_bytes_max} (its max-message-size)",
        )

    def _message(self, event_id: int, message: bytes) -> bytes:
        """Return the message with the annotations that receivers have added."""
        modifications = self._service.modifications
        if not modifications:
            return message
        added = modifications.added_to(self.reader, event_id)
        return message if added is None else annotated(message, added)

    def _pass_over(self, ids: list[int]) -> None:
        """Acknowledge events that the client has published itself and does not want (no-local)."""
        self.acknowledge(ids)
        self.flow()

    # --- credit --------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of further events that the realm may deliver."""
        link = self.link
        if link is None or self.is_over:
            return 0
        credit, unsettled_free = link.credit, self._service.limits.unsettled_max - link.unsettled
        self._is_full = unsettled_free < credit
        return max(0, min(credit, unsettled_free) - len(self._waiting))

    def flow(self) -> None:
        """Process new credit, or credit that the client has withdrawn."""
        link = self.link
        if link is None or self.is_over:
            return
        self._send_held()
        if self.mode.has_seat:
            if not self._is_grant_requested:
                self._is_grant_requested = True
                self._realm.subscriptions.grant(self.number, self)
            return
        credit_change = self.room - self._granted
        if credit_change:  # negative if the client has withdrawn credit
            self._granted += credit_change
            self._realm.subscriptions.credit(
                self.subscription, max(0, credit_change), withdrawn=max(0, -credit_change)
            )
        if link.is_draining:  # the realm calls `finished` after the last available event
            self._realm.subscriptions.demand(self.subscription, 0)

    def resume_delivery(self) -> None:
        """Resume delivery after the link, its connection or its user has room again."""
        if self.is_over:
            return
        with self._connection.containing:
            self._realm.subscriptions.credit(self.subscription, 0, taken=1)
            self.flow()

    def ready_seat(self) -> int | None:
        """Return the seat that the realm may now deliver to; None without a link."""
        self._is_grant_requested = False
        return None if self.link is None else self.subscription

    def room_now(self) -> tuple[int, bool]:
        """Return the number of events that the seat has room for, and whether the client drains its
        link."""
        room, is_draining, link = 0, False, self.link
        assert link is not None, "`ready_seat` returns a seat only with a link"
        with self._connection.containing:
            room, is_draining = self.room, link.is_draining
            self._return_surplus()
        return room, is_draining

    def _send_held(self) -> None:
        link = self.link
        assert link is not None, "only a link has credit"
        credit = link.credit
        sent: list[int] = []
        while self._waiting and credit > 0:
            event_id, message = self._waiting.popleft()
            self._connection.engine.send(link, event_id, message)
            sent.append(event_id)
            credit -= 1
        if link.settled and sent:
            self.acknowledge(sent)

    def _return_surplus(self) -> None:
        """Give back waiting events whose credit the client has withdrawn, so that other clients get
        them."""
        link = self.link
        assert link is not None, "only a link has credit"
        surplus = len(self._waiting) - max(0, link.credit)
        if surplus > 0 and not self.mode.keeps_unsettled and self.mode.has_seat:
            surplus_ids = [self._waiting.pop()[0] for _ in range(surplus)]
            self.give_back(surplus_ids, counted=False)

    # --- settling ------------------------------------------------------------------------

    def settled(self) -> None:
        """Process the client's outcomes, and new credit that arrived with them."""
        link = self.link
        assert link is not None, "outcomes arrive on a link"
        accepted, link.accepted = link.accepted, []
        outcomes, link.outcomes = link.outcomes, []
        if accepted:
            self.acknowledge(accepted)
        for outcome in outcomes:
            if outcome.fault:
                self._connection.end_link(link, INVALID, outcome.fault)  # the event goes back
            elif (name := outcome.transaction) is None:
                self._settle(outcome)  # outside of a transaction
            else:
                self._connection.transactions.add_outcome(name, self, outcome)
        if link.has_flow or outcomes or self._is_full:
            link.has_flow = False
            self.flow()

    def _settle(self, outcome: Outcome) -> None:
        """Apply an outcome other than a settled ``accepted``, and answer it once it is stored."""
        self.apply(outcome, self.answer(outcome))

    def consumes(self, outcome: Outcome) -> bool:
        """Return True if the outcome acknowledges the event: it is accepted, or it is rejected and
        the channel does not move dead events."""
        is_rejected = outcome.state == REJECTED
        return outcome.state == ACCEPTED or (is_rejected and not self._moves_dead)

    def apply(self, outcome: Outcome, reply: Reply | None = None) -> None:
        """Apply the outcome of a delivery."""
        if self.consumes(outcome):
            self.acknowledge([outcome.event_id], reply)
        elif outcome.state == REJECTED or (outcome.undeliverable and self._moves_dead):
            self._bury_rejected(outcome, reply or _log_failure)
        else:
            self._return_event(outcome, reply)

    def answer(self, outcome: Outcome) -> Reply:
        """Return a reply that settles the delivery on this side after its outcome is stored."""
        connection, link, delivery = self._connection, self.link, outcome.delivery
        assert link is not None, "outcomes arrive on a link"
        link.unanswered += 1

        def reply(_: Any, error: BaseException | None) -> None:
            link.unanswered -= 1
            with connection.containing:
                connection.engine.forget(link, delivery)
                connection.free_if_answered(link)
                if self._is_full:
                    self.flow()
            if error is not None:
                _log.debug("amqp.not_settled", event_id=outcome.event_id, reason=str(error))

        return reply

    def acknowledge(self, ids: Sequence[int], reply: Reply | None = None) -> None:
        """Acknowledge events, which consumes them."""
        acknowledgement = self.acknowledgement_for(ids)
        self.record_consumed(ids, acknowledgement)
        if acknowledgement is None:
            (reply or _log_failure)(None, None)
            return
        if reply is None:
            reply = (
                _log_failure
                if acknowledgement.previous or len(ids) == 1
                else self._acknowledge_in_halves(ids)
            )
        self._realm.subscriptions.settle(
            self.subscription,
            acknowledgement.spans,
            reply,
            roll_back=False,
            previous=acknowledgement.previous,
        )

    def _acknowledge_in_halves(self, ids: Sequence[int]) -> Reply:
        """Return a reply that repeats a refused acknowledgement in halves, down to single events.

        The realm refuses all events of an acknowledgement if one of them has been given back
        meanwhile; the others must still be acknowledged (SEM D15).
        """

        def reply(_: Any, error: BaseException | None) -> None:
            if not isinstance(error, IllegalState) or self.is_over:
                _log_failure(None, error)
                return
            with self._connection.containing:
                middle = len(ids) // 2
                self.acknowledge(ids[:middle])
                self.acknowledge(ids[middle:])

        return reply

    def acknowledgement_for(self, ids: Sequence[int]) -> Acknowledged | None:
        """Return the acknowledgement to send to the realm for consumed events; None if the realm
        needs none. The caller then calls :meth:`record_consumed`."""
        if not self.mode.has_seat:
            return None
        if not self.mode.cumulative:
            spans = IdSet.from_ids(sorted(ids)).spans
            return Acknowledged(self.number, self.subscription, spans)
        acknowledged_ids = frozenset(ids)
        # A cumulative durable knows one position, so only the prefix before the lowest unsettled
        # event can be acknowledged.
        first_open = min(
            (event_id for event_id in self.kept if event_id not in acknowledged_ids),
            default=self._newest + 1,
        )
        through = first_open - 1
        if through <= self._through:
            return None
        span = Span(through, through + 1)
        return Acknowledged(self.number, self.subscription, (span,), previous=True)

    def record_consumed(self, ids: Sequence[int], acknowledgement: Acknowledged | None) -> None:
        """Record consumed events, after ``acknowledgement`` has been sent to the realm."""
        self.kept.forget(ids)
        self._service.modifications.forget(self.reader, ids)
        if self.confirms and not self.is_over:
            self._report_consumed(ids)
        if acknowledgement is not None and acknowledgement.previous:
            self._through = max(self._through, acknowledgement.spans[0][0])

    def _report_consumed(self, ids: Sequence[int]) -> None:
        """Report consumed ids to the realm, which keeps the position of a JMS subscriber."""
        sorted_ids = sorted(ids)
        self._confirming.append(sorted_ids)
        self._realm.subscriptions.arrived(
            self.subscription, IdSet.from_ids(sorted_ids).spans, lambda *_: self._report_answered()
        )

    def _report_answered(self) -> None:
        # The realm answers reports in order. The list is empty after the consumer has ended.
        if self._confirming:
            self._confirming.popleft()

    def _return_event(self, outcome: Outcome, reply: Reply | None = None) -> None:
        """Give back an event that the client released or modified."""
        if outcome.added:
            modifications = self._service.modifications
            modifications.note(self.reader, outcome.event_id, outcome.added)
        self.give_back(
            [outcome.event_id],
            counted=outcome.state == MODIFIED and outcome.failed,
            elsewhere=outcome.undeliverable,
            delay_ms=self._delay_of(outcome),
            reply=reply,
        )

    def _delay_of(self, outcome: Outcome) -> int | None:
        """Return the delay of a returned event in ms (SEM D18): 0 for a past time, at most
        `DELAY_MS_MAX`; None if the client asks for none."""
        if outcome.delivery_time_ms is None:
            return None
        wait_ms = outcome.delivery_time_ms - self._realm.clock.now_us() // 1_000
        return min(max(0, wait_ms), DELAY_MS_MAX)

    def give_back(
        self,
        ids: Sequence[int],
        *,
        counted: bool,
        elsewhere: bool = False,
        delay_ms: int | None = None,
        reply: Reply | None = None,
    ) -> None:
        """Give events back for another delivery.

        ``counted``: the client has tried them, so the redelivery count rises. ``elsewhere``:
        another client gets them. ``delay_ms``: how long they wait; ignored if the link itself
        delivers them again.
        """
        reply = reply or _log_failure
        if self.mode.keeps_unsettled and elsewhere:
            self._skip(ids, reply, delay_ms)
        elif self.mode.keeps_unsettled:
            reply(None, None)  # before the event is sent again under the same tag
            self._deliver_again(ids, counted=counted)
        elif not self.mode.has_seat:  # a browser holds nothing
            reply(None, None)
        else:
            spans = IdSet.from_ids(sorted(ids)).spans
            self._realm.subscriptions.give_back(
                self.number,
                self.subscription,
                spans,
                reply=reply,
                counted=counted,
                elsewhere=elsewhere,
                delay_ms=delay_ms,
            )

    def _skip(self, ids: Sequence[int], reply: Reply, delay_ms: int | None) -> None:
        """Skip events that this client refuses. The next client of a durable gets them; on a topic
        they count as consumed by this subscriber."""
        if not self.mode.has_seat:
            self.record_consumed(ids, None)
            reply(None, None)
            return
        self.kept.forget(ids)
        spans = IdSet.from_ids(sorted(ids)).spans
        self._realm.subscriptions.give_back(
            self.number, self.subscription, spans, reply=reply, counted=True, delay_ms=delay_ms
        )

    def _deliver_again(self, ids: Sequence[int], *, counted: bool) -> None:
        """Deliver kept events again, before waiting events; the realm would not do it."""
        waiting = dict(self._waiting)
        for event_id in ids:
            kept = self.kept.get(event_id)
            if kept is None:
                continue
            messages, row, count, size = kept
            count += counted
            self.kept.replace(event_id, (messages, row, count, size))
            waiting[event_id] = self._message(event_id, messages.message(row, count))
        self._waiting = deque(sorted(waiting.items()))
        if self.link is not None and not self.link.is_over:
            self._send_held()
            self._connection.flush_soon()

    def _bury_rejected(self, outcome: Outcome, reply: Reply) -> None:
        """Move an event that the client rejects to the dead event store (SEM T11)."""
        event_id = outcome.event_id
        self.kept.forget([event_id])
        self._service.modifications.forget(self.reader, [event_id])
        self._connection.spawn(self._bury, event_id, outcome.reason, reply=reply)

    @property
    def _moves_dead(self) -> bool:
        """Whether events that are rejected here move to a dead event store."""
        store = self._realm.view.store(self.number)
        return self.mode.has_seat and store is not None and store.moves_dead

    async def _bury(self, event_id: int, reason: str, reply: Reply) -> None:
        """Move an event to the dead event store with the client's reason, then call ``reply``."""
        error: PenstockError | None = None
        try:
            holding = self._realm.subscriptions.holding
            await holding.bury(self.subscription, (Span(event_id, event_id + 1),), reason)
        except PenstockError as failure:
            error = failure
        reply(None, error)

    # --- end of the consumer -------------------------------------------------------------

    def stolen(self) -> None:
        """End the link, because its client has attached it elsewhere; its events go to the new
        link."""
        self.is_over = True
        if self.link is not None:
            self._connection.end_link(
                self.link, STOLEN, "another connection or session has attached this link"
            )

    def lose(self) -> None:
        """Leave after a lost connection: the realm keeps the subscriber's position for a time (SEM
        J5)."""
        # Ids whose reports are not answered yet would otherwise be delivered again.
        arrived = IdSet.from_ids(sorted(event_id for ids in self._confirming for event_id in ids))
        self.is_over = True
        self._forget()
        self._realm.subscriptions.lose(self.subscription, arrived.spans)

    def end(self, reply: Reply | None = None) -> None:
        """Detach from the realm; events in flight go back (SEM D13)."""
        self.is_over = True
        self._forget()
        self._realm.subscriptions.detach(self.subscription, reply)

    def _forget(self) -> None:
        """Drop the events and annotations that the ended consumer holds."""
        self._waiting.clear()
        self._confirming.clear()
        if self.kept:
            self._service.modifications.forget(self, list(self.kept))
        self.kept.close()
        self._service.places.remove(self)


def _redelivery_counts(
    redeliveries: tuple[tuple[int, Spans], ...], ids: list[int]
) -> dict[int, int]:
    """Return the number of earlier deliveries of each event in a batch, by id; events without one
    are left out. ``ids`` are the ascending ids of the batch."""
    counts: dict[int, int] = {}
    low, high = ids[0], ids[-1] + 1
    for count, spans in redeliveries:
        for first, end in spans:
            for event_id in range(max(first, low), min(end, high)):
                counts[event_id] = count
    return counts


def _log_failure(_: Any, error: BaseException | None) -> None:
    if error is not None:
        _log.debug("amqp.not_settled", reason=str(error))
