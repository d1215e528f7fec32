"""Recalls, which keep the order after a rollback (SEM D11).

Events that were sent after a rolled-back event are taken back; with ``order_by`` only the events of
the same lane. Events that were not acknowledged in time are also taken back (SEM D19). If a client
settles a recalled event before it knows of the recall, the settlement is ignored.
"""

from __future__ import annotations

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import IllegalState


def events_behind(durable: Durable, rolled_back: IdSet) -> IdSet:
    """Return the events in flight that were sent too early: they must follow the events of
    ``rolled_back`` when these are redelivered."""
    returned = durable.outstanding.overlap(rolled_back)
    lowest = returned.lowest
    later = IdSet()
    if lowest is None:
        return later
    # Durables without lanes or strict order may redeliver an event after later ones.
    if durable.lanes is not None:
        later = durable.lanes.after(returned)
    elif durable.attributes.strict_order:
        for seat in durable.seats:
            later.add_all(seat.in_flight.within(Span(lowest + 1, 1 << 62)))
    later.discard_all(rolled_back)
    return later.overlap(durable.outstanding)


def recall(durable: Durable, later: IdSet) -> list[Recall]:
    """Take back the events ``later`` without counting a redelivery; return the recalls to send."""
    recalls: list[Recall] = []
    for seat in durable.seats if later else ():
        held = seat.in_flight.overlap(later)
        if held:
            seat.recalls.append(held)
            recalls.append(Recall(seat.subscription, held.spans))
    durable.recall(later)
    return recalls


def take_all_back(durable: Durable) -> list[Recall]:
    """Take back all events in flight for a seek (SEM D20); return the recalls to send."""
    held = IdSet()
    for seat in durable.seats:
        seat.sought.add_all(seat.in_flight)
        held.add_all(seat.in_flight)
    return recall(durable, held)


def recalled_of(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
    """Return the part of ``spans`` that was recalled from ``seat`` and whose recall the client has
    not confirmed."""
    ids = IdSet()
    if seat.recalls:
        named = IdSet(spans).overlap(stored)
        for recalled in seat.recalls:
            ids.add_all(recalled.overlap(named))
    ids = durable.wanting(ids)
    if seat.sought:
        ids.add_all(seat.sought.overlap(IdSet(spans)))
    return ids


def refuse_recalled(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> None:
    """Raise ``IllegalState`` if some of ``spans`` were recalled from ``seat``."""
    if seat.recalls and (recalled := recalled_of(durable, seat, spans, stored)):
        if recalled.lowest in seat.sought:
            raise IllegalState(
                f"event {recalled.lowest} of durable {durable.name} was taken back because the "
                "durable was moved to another position (seek); outstanding events from there on "
                "are delivered again"
            )
        raise IllegalState(
            f"event {recalled.lowest} of durable {durable.name} was recalled"
            f"{_cause_of_recall(seat)}; it will be delivered again"
        )


def not_recalled(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> Spans:
    """Return ``spans`` without events recalled from ``seat``, which were taken back already without
    counting a redelivery."""
    recalled = recalled_of(durable, seat, spans, stored) if seat.recalls else None
    if not recalled:
        return spans
    named = IdSet(spans)
    named.remove_all(recalled)
    return named.spans


def _cause_of_recall(seat: Seat) -> str:
    """Return the clause of an error text that explains why events were recalled from a seat."""
    order_cause = "an earlier event was rolled back and must come first"
    if not seat.ack_timeout_ms:
        return f" because {order_cause}"
    return (
        f" because it was not acknowledged within {seat.ack_timeout_ms / 1_000:g} s (ack_timeout), "
        f"or {order_cause}"
    )
