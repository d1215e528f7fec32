"""Limits what each client may ask for over HTTP: requests a second, bytes in flight.

The limits are those of a native connection. Since HTTP clients open connections as they like, they
apply to a user at a host, over all of its connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.access.quota import ConnectionLimits, Quota

KNOWN_MAX: Final = 10_000
"""Most clients that are remembered, the latest ones."""


class Quotas:
    """The quotas of all clients."""

    def __init__(self, limits: ConnectionLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._known: OrderedDict[str, Quota] = OrderedDict()
        self._number = 0

    @contextmanager
    def asking(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count one request of ``principal``; gives a function that counts the bytes of its events.
        Both raise ``LimitReached``."""
        if not self._limits.are_set:
            yield lambda size: None
            return
        self._number += 1
        number, quota = self._number, self._of(principal.name)
        quota.counted(self._clock.now_us())
        try:
            yield lambda size: quota.carried(number, size)
        finally:
            quota.answered(number)

    def _of(self, name: str) -> Quota:
        quota = self._known.get(name)
        if quota is None:
            quota = self._known[name] = Quota(self._limits, of=name)
        self._known.move_to_end(name)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return quota
