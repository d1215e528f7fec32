"""Backoff: the delay of a rolled-back event, longer each time (SEM D18).

The delay is a function of the attribute, the event id and its redelivery count only. It uses no
random number, because a replay or another node must compute the same delay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

DELAY_MS_MAX: Final = 366 * 86_400_000
"""Longest delay after a rollback: a year."""
FACTOR_MAX: Final = 1_000.0
"""Largest factor between a delay and the next one."""
SEED_MAX: Final = (1 << 32) - 1
"""Largest seed of the jitter."""
MOST_DEFAULT: Final = 300_000
"""Longest delay of a backoff that does not set ``most``, in milliseconds: five minutes."""
PIECES_MAX: Final = 16
"""Maximum number of different delays of events that are rolled back together with the same
redelivery count."""

_MASK: Final = (1 << 64) - 1


class Backoff(Struct, frozen=True, forbid_unknown_fields=True):
    """Delays of rolled-back events (SEM D18): an attribute of durables and queues."""

    first: int
    """Delay after the first delivery has failed, in milliseconds."""
    factor: float = 2.0
    """Factor between a delay and the next one."""
    most: int = MOST_DEFAULT
    """Longest delay, in milliseconds."""
    jitter: float = 0.0
    """Largest reduction of the delay, as a share from 0 to 1. The reduction spreads the
    redeliveries of events that failed together."""
    seed: int = 0
    """Seed of the share of ``jitter`` that applies to an event. The event's id and its redelivery
    count also determine that share."""

    def wait_us(self, count: int, event_id: int) -> int:
        """Return the delay in microseconds before the redelivery number ``count`` of an event."""
        # A power that is too large for a float is above any longest delay.
        try:
            wait_ms = min(float(self.most), self.first * self.factor ** (count - 1))
        except OverflowError:
            wait_ms = float(self.most)
        # Jitter only shortens a delay, so that `most` remains its upper bound.
        share = self.jitter * _share_of_jitter(self.seed, count, event_id)
        return int(wait_ms * 1_000 * (1.0 - share))


def check_backoff(backoff: Backoff | None) -> None:
    """Raise ``InvalidArgument`` for a backoff that is out of bounds."""
    if backoff is None:
        return
    for name, value, least, highest in bounds_of(backoff):
        if not least <= value <= highest:
            raise InvalidArgument(
                f"backoff.{name} is {value}; allowed are {least} to {highest}{_unit(name)}"
            )


def bounds_of(backoff: Backoff) -> Iterator[tuple[str, float, float, float]]:
    """Yield every number of a backoff with its lowest and highest allowed value."""
    yield "first", backoff.first, 1, DELAY_MS_MAX
    yield "factor", backoff.factor, 1.0, FACTOR_MAX
    yield "most", backoff.most, backoff.first, DELAY_MS_MAX
    yield "jitter", backoff.jitter, 0.0, 1.0
    yield "seed", backoff.seed, 0, SEED_MAX


def check_delay(delay_ms: int | None) -> None:
    """Raise ``InvalidArgument`` for a delay in milliseconds that is out of bounds. None means that
    no delay was requested, which is allowed."""
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        raise InvalidArgument(
            f"the delay of a rollback is {delay_ms} ms; allowed are 0 to {DELAY_MS_MAX}, a year"
        )


def _unit(name: str) -> str:
    return " (milliseconds)" if name in ("first", "most") else ""


def _share_of_jitter(seed: int, count: int, event_id: int) -> float:
    """Return a pseudo-random number from 0 to below 1, by the finalizer of SplitMix64."""
    mixed = (seed * 0x9E3779B97F4A7C15 + event_id * 0xD1B54A32D192ED03 + count) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
