"""Effects: orders of a channel to the shell, which is the code around the state machine that does
the I/O."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Spans


class Effect(Struct, frozen=True):
    """An action that the shell must perform."""


class Deliver(Effect, frozen=True):
    """Send events to the client of a subscription."""

    subscription: int
    spans: Spans
    redeliveries: tuple[tuple[int, Spans], ...] = ()
    """Redelivery counts, each with its part of ``spans``."""


class FindInterested(Effect, frozen=True):
    """Find the followers whose selectors may match events of ``spans``, and send a ``SingleOut``
    before the next effect."""

    spans: Spans


class FindLanes(Effect, frozen=True):
    """Find the lanes of ``spans`` (SEM D11), and send an ``AssignLanes`` before the next effect."""

    durable: str
    property: str
    """The property whose values are lanes."""
    spans: Spans


class Recall(Effect, frozen=True):
    """Tell a client that ``spans`` count as never delivered (SEM D11). No event is sent until it
    confirms."""

    subscription: int
    spans: Spans


class ReportEnd(Effect, frozen=True):
    """Report that a browse has reached its end, or that a request for events is fulfilled."""

    subscription: int
