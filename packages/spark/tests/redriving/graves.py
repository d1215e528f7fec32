"""Makes dead events to redrive."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.event import Event
from tests.patience import until


def buried(
    session: Session, events: Sequence[Event], *, channel: str = "orders", dead: str = "dead"
) -> Channel:
    """Return the channel ``dead``, to which ``events`` were moved because ``channel`` was full. One
    more event, ``stays``, is left in ``channel``."""
    if dead not in session.channels.list():
        session.channels.create(dead, type="persistent")
    dead_channel = session.channels.get(dead)
    if channel not in session.channels.list():
        session.channels.create(channel, type="persistent", dead_event_store=dead)
    source = session.channels.get(channel)
    source.edit(capacity=1)
    before = dead_channel.info().events
    displaced = source.info().events
    source.publish_many(events)
    source.publish(b"stays")
    until(lambda: dead_channel.info().events >= before + displaced + len(events))
    source.edit(capacity=0)
    return dead_channel


def data_of(session: Session, name: str) -> list[bytes]:
    """Return the events of a channel, in order."""
    return [event.data for event in session.channels.get(name).browse()]
