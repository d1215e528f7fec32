"""How long an event that failed waits before it comes again: each time longer (SEM D18).

The wait is a function of the attribute, the event and its count alone: no draw is made that a
replay, or another node, would make differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

DELAY_MS_MAX: Final = 366 * 86_400_000
"""The longest wait after a rollback: a year."""
FACTOR_MAX: Final = 1_000.0
SEED_MAX: Final = (1 << 32) - 1
MOST_DEFAULT: Final = 300_000
PIECES_MAX: Final = 16
"""Events given back together with the same count come again at so many different times, at most."""

_MASK: Final = (1 << 64) - 1


class Backoff(Struct, frozen=True, forbid_unknown_fields=True):
    """How long rolled-back events wait (SEM D18): an attribute of durables and queues."""

    first: int
    """Milliseconds that an event waits after its first delivery has failed."""
    factor: float = 2.0
    """How many times longer it waits after each further one."""
    most: int = MOST_DEFAULT
    """Milliseconds that it waits at most."""
    jitter: float = 0.0
    """The share of the wait, 0 to 1, by which it may be shorter, so that events which failed
    together do not come again together."""
    seed: int = 0
    """Decides, with the id and the count of an event, by how much."""

    def wait_us(self, count: int, event_id: int) -> int:
        """How long an event waits that has been redelivered ``count`` times, this one included."""
        try:
            wait_ms = min(float(self.most), self.first * self.factor ** (count - 1))
        except OverflowError:
            wait_ms = float(self.most)
        share = self.jitter * _drawn(self.seed, count, event_id)
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
    """Every number of a backoff with the least and the highest that is allowed."""
    yield "first", backoff.first, 1, DELAY_MS_MAX
    yield "factor", backoff.factor, 1.0, FACTOR_MAX
    yield "most", backoff.most, backoff.first, DELAY_MS_MAX
    yield "jitter", backoff.jitter, 0.0, 1.0
    yield "seed", backoff.seed, 0, SEED_MAX


def check_delay(delay_ms: int | None) -> None:
    """Raise ``InvalidArgument`` for a wait that is out of bounds; None is without one."""
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        raise InvalidArgument(
            f"the delay of a rollback is {delay_ms} ms; allowed are 0 to {DELAY_MS_MAX}, a year"
        )


def _unit(name: str) -> str:
    return " (milliseconds)" if name in ("first", "most") else ""


def _drawn(seed: int, count: int, event_id: int) -> float:
    """A number from 0 on, below 1, that looks random: the finalizer of SplitMix64."""
    mixed = (seed * 0x9E3779B97F4A7C15 + event_id * 0xD1B54A32D192ED03 + count) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
