"""Measurements of an owner's appends to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.vocabulary.errors import Deposed, StorageFailed
from penstock_core.vocabulary.timings import Timings

# Outcomes of appends, as the metrics name them.
STORED: Final = "stored"
DEPOSED: Final = "deposed"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"


class EngineAppends:
    """Durations of appends, the duration of the current append so far, and the outcomes of appends
    that got no answer."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        """``now_us`` is a clock that only goes forward."""
        self.timings = Timings()
        self.ambiguous = dict.fromkeys((STORED, DEPOSED, REFUSED, UNKNOWN), 0)
        """Number of appends whose outcome had to be looked up, by outcome."""
        self._now_us = now_us
        self._began_us: int | None = None
        self._is_ambiguous = False

    @property
    def waiting_us(self) -> int:
        """Microseconds that the current append has waited; 0 without one."""
        # At least 1, because 0 means that no append waits.
        return 0 if self._began_us is None else max(1, self._now_us() - self._began_us)

    def record_missing_answer(self) -> None:
        """Record that the present append got no answer, so that its outcome has to be looked up."""
        self._is_ambiguous = True

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Measure one append. Its errors are passed on."""
        self._began_us, self._is_ambiguous = self._now_us(), False
        outcome = UNKNOWN
        try:
            yield
            outcome = STORED
            self.timings.note(self._now_us() - self._began_us)
        except BaseException as failure:
            outcome = _outcome_of(failure)
            raise
        finally:
            self._began_us = None
            if self._is_ambiguous:
                self.ambiguous[outcome] += 1


def _outcome_of(failure: BaseException) -> str:
    """Return the outcome of an append that has failed with this error."""
    if isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, Deposed):
        return DEPOSED
    return REFUSED if isinstance(failure, StorageFailed) else UNKNOWN
