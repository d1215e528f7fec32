"""Effects: what a channel orders the shell to do."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Spans


class Effect(Struct, frozen=True):
    """Something the shell must do in the world."""


class Deliver(Effect, frozen=True):
    subscription: int
    spans: Spans
    redeliveries: tuple[tuple[int, Spans], ...] = ()
    """Redelivery counts, each with the part of ``spans`` that has it."""


class FindInterested(Effect, frozen=True):
    """Say which followers ``spans`` may be for, before the next effect: with a ``SingleOut``."""

    spans: Spans


class FindLanes(Effect, frozen=True):
    """Say which lanes ``spans`` are in (SEM D11), before the next effect: with
    an ``AssignLanes``."""

    durable: str
    property: str
    """The property whose values are lanes."""
    spans: Spans


class Recall(Effect, frozen=True):
    """``spans`` count as never delivered (SEM D11); nothing more is until the client confirms."""

    subscription: int
    spans: Spans


class ReportEnd(Effect, frozen=True):
    """A browse has seen everything, or a fetch got all it demanded."""

    subscription: int
