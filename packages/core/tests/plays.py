"""Channels with events and clients, as a start for tests of the core."""

from __future__ import annotations

from typing import Any

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import TakeSeat
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, events, publish


def play_of(definition: Definition | None = None, *, events: int = 0, **attributes: Any) -> Play:
    """Return a persistent channel, or one with these ``attributes``, with ``events`` on it."""
    attributes.setdefault("type", "persistent")
    play = Play(ChannelMachine("orders", definition or Definition(**attributes), rules()))
    if events:
        play.do(publish(events))
    return play


def durable_play(
    kind: str,
    *windows: int | None,
    events: int = 0,
    pull: bool = False,
    **attributes: Any,
) -> Play:
    """Return a channel with a durable ``d``, and a seat (1, 2, …) of that window for each of
    ``windows``. ``events`` are published last."""
    play = play_of(**attributes)
    play.do(AddDurable("d", kind))
    for seat, window in enumerate(windows, start=1):
        play.do(TakeSeat("d", seat, f"s{seat}", window=window, pull=pull))
    if events:
        play.do(publish(events))
    return play


def outstanding(play: Play, name: str = "d") -> list[int]:
    durable = play.channel.state.durables[name]
    spans = durable.outstanding_spans(play.channel.state.stored)
    return [event_id for span in spans for event_id in range(*span)]


def dying(**attributes: Any) -> Play:
    """Return a channel with a dead event store."""
    return play_of(dead_event_store="dead", **attributes)


def removals(play: Play) -> list[tuple[Cause, list[int], list[int]]]:
    """Return the events that have left, with the cause, and which of them were dead."""
    return [(one.cause, events(one.spans), events(one.dead)) for one in play.removed]


def reader(play: Play, name: str, kind: str, subscription: int, **more: Any) -> None:
    """Add a durable with one client, which may hold at least 100 events."""
    play.do(AddDurable(name, kind, **more))
    play.do(
        TakeSeat(name, subscription, f"s{subscription}", window=100 if kind == "shared" else None)
    )
