"""Dead events to redrive."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.event import Event
from tests.patience import until


def buried(
    session: Session, events: Sequence[Event], *, channel: str = "orders", dead: str = "dead"
) -> Channel:
    """The store of dead events; ``events`` have left ``channel`` for it, which was full."""
    if dead not in session.channels.list():
        session.channels.create(dead, type="persistent")
    grave = session.channels.get(dead)
    if channel not in session.channels.list():
        session.channels.create(channel, type="persistent", dead_event_store=dead)
    living = session.channels.get(channel)
    living.edit(capacity=1)
    before = grave.info().events
    stays = living.info().events
    living.publish_many(events)
    living.publish(b"stays")
    until(lambda: grave.info().events >= before + stays + len(events))
    living.edit(capacity=0)
    return grave


def data_of(session: Session, name: str) -> list[bytes]:
    """Return the events of a channel, in order."""
    return [event.data for event in session.channels.get(name).browse()]
