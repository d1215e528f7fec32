"""Order under rollback (SEM D11): what was sent of the events after a rolled-back one is taken
back; with ``order_by`` of those in its lane. So is what was not acknowledged in time (SEM D19).

What a client settles before it knows of that was settled for a delivery that does not count.
"""

from __future__ import annotations

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import IllegalState


def behind(durable: Durable, rolled_back: IdSet) -> IdSet:
    """The events in flight that have to come after the redelivered events of ``rolled_back``."""
    back = durable.outstanding.overlap(rolled_back)
    lowest = back.lowest
    later = IdSet()
    if lowest is None:
        return later
    if durable.lanes is not None:
        later = durable.lanes.after(back)
    elif durable.attributes.strict_order:
        for seat in durable.seats:
            later.add_all(seat.in_flight.within(Span(lowest + 1, 1 << 62)))
    later.discard_all(rolled_back)
    return later.overlap(durable.outstanding)


def recall(durable: Durable, later: IdSet) -> list[Recall]:
    """Take these events back without counting a delivery; gives whom to tell what."""
    recalls: list[Recall] = []
    for seat in durable.seats if later else ():
        mine = seat.in_flight.overlap(later)
        if mine:
            seat.recalls.append(mine)
            recalls.append(Recall(seat.subscription, mine.spans))
    durable.recalled(later)
    return recalls


def take_all_back(durable: Durable) -> list[Recall]:
    """A seek takes everything out of all hands (SEM D20); gives whom to tell what."""
    held = IdSet()
    for seat in durable.seats:
        seat.sought.add_all(seat.in_flight)
        held.add_all(seat.in_flight)
    return recall(durable, held)


def recalled_of(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
    """The part of ``spans`` that was recalled from ``seat``, and its client could not know."""
    found = IdSet()
    if seat.recalls:
        named = IdSet(spans).overlap(stored)
        for recalled in seat.recalls:
            found.add_all(recalled.overlap(named))
    found = durable.wanting(found)
    if seat.sought:
        found.add_all(seat.sought.overlap(IdSet(spans)))
    return found


def refuse_recalled(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> None:
    """Raises ``IllegalState`` when some of ``spans`` were recalled from ``seat``."""
    if seat.recalls and (recalled := recalled_of(durable, seat, spans, stored)):
        if recalled.lowest in seat.sought:
            raise IllegalState(
                f"event {recalled.lowest} of durable {durable.name} was taken back because the "
                "durable was moved to another place (seek) meanwhile; what is outstanding from "
                "there on is delivered again"
            )
        raise IllegalState(
            f"event {recalled.lowest} of durable {durable.name} was recalled{_why(seat)}; it will "
            "be delivered again"
        )


def not_recalled(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> Spans:
    """``spans`` without what was recalled from ``seat``: that is back already, uncounted."""
    recalled = recalled_of(durable, seat, spans, stored) if seat.recalls else None
    if not recalled:
        return spans
    named = IdSet(spans)
    named.remove_all(recalled)
    return named.spans


def _why(seat: Seat) -> str:
    order = "an earlier event was rolled back and must come first"
    if not seat.ack_timeout_ms:
        return f" because {order}"
    return (
        f" because it was not acknowledged within {seat.ack_timeout_ms / 1_000:g} s (ack_timeout), "
        f"or {order}"
    )
