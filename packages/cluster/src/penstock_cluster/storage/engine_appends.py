"""What an owner measures of its appends to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.vocabulary.errors import Deposed, StorageFailed
from penstock_core.vocabulary.timings import Timings

STORED: Final = "stored"
DEPOSED: Final = "deposed"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"


class EngineAppends:
    """How long appends take, how long the one under way has waited, and what became of those of
    which an answer was missing."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        """``now_us`` is a clock that only goes forward."""
        self.timings = Timings()
        self.ambiguous = dict.fromkeys((STORED, DEPOSED, REFUSED, UNKNOWN), 0)
        """By what they turned out to be, appends that had to be asked about again."""
        self._now_us = now_us
        self._began_us: int | None = None
        self._is_ambiguous = False

    @property
    def waiting_us(self) -> int:
        """How long the append under way has waited; 0: there is none."""
        return 0 if self._began_us is None else max(1, self._now_us() - self._began_us)

    def unanswered(self) -> None:
        """The append under way had no answer once, and is asked about again."""
        self._is_ambiguous = True

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Measure one append. What it ends with is raised on."""
        self._began_us, self._is_ambiguous = self._now_us(), False
        became = UNKNOWN
        try:
            yield
            became = STORED
            self.timings.note(self._now_us() - self._began_us)
        except BaseException as failure:
            became = _became(failure)
            raise
        finally:
            self._began_us = None
            if self._is_ambiguous:
                self.ambiguous[became] += 1


def _became(failure: BaseException) -> str:
    """What is known of an append that has failed with this."""
    if isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, Deposed):
        return DEPOSED
    return REFUSED if isinstance(failure, StorageFailed) else UNKNOWN
