"""Limits each HTTP client's requests per second and bytes in flight.

The limits are those of a native connection. Because HTTP clients open any number of connections,
the limits apply to a user at a host, over all its connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.access.quota import ConnectionLimits, Quota

CLIENTS_MAX: Final = 10_000
"""Maximum number of clients with a stored quota; the least recently active one is dropped."""


class Quotas:
    """The quotas of all clients."""

    def __init__(self, limits: ConnectionLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._quotas: OrderedDict[str, Quota] = OrderedDict()
        self._request_number = 0

    @contextmanager
    def asking(self, principal: Principal) -> Iterator[Callable[[int], None]]:
        """Count one request of ``principal`` while the ``with`` block runs, and yield a function
        that counts the bytes of its events. Counting raises ``LimitReached``."""
        if not self._limits.are_set:
            yield lambda size: None
            return
        self._request_number += 1
        number, quota = self._request_number, self._quota_of(principal.name)
        quota.count_request(self._clock.now_us())
        try:
            yield lambda size: quota.add_bytes(number, size)
        finally:
            quota.end_request(number)

    def _quota_of(self, name: str) -> Quota:
        """Return the quota of a client, which counts as active now."""
        quota = self._quotas.get(name)
        if quota is None:
            quota = self._quotas[name] = Quota(self._limits, client=name)
        self._quotas.move_to_end(name)
        if len(self._quotas) > CLIENTS_MAX:
            self._quotas.popitem(last=False)
        return quota
