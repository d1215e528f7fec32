"""State that all HTTP requests of a realm share: limits, quotas, sign-in, live views, metrics and
the console's files. :class:`~penstock_server.frontends.http.server.HttpServer` manages the
connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Literal, Protocol

from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import PenstockError, RealmStopping, Unavailable
from penstock_server.frontends.http import metrics
from penstock_server.frontends.http.access import Guard
from penstock_server.frontends.http.console import Files
from penstock_server.frontends.http.quotas import Quotas
from penstock_server.frontends.http.shares import Shares
from penstock_server.frontends.http.standstill import STANDSTILL_S, Standstill
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.buffers import Buffers

BUFFERS: Final = 4
"""Number of bodies of the largest size that may be in memory at the same time."""


class HttpLimits(Struct, frozen=True):
    """Limits for HTTP clients."""

    connections_max: int = 256
    connections_per_address_max: int = 128
    body_bytes_max: int = 32 << 20
    head_timeout_s: float = 20.0
    """Seconds from the start of the connection, or from its last answer, in which the headers of a
    request must arrive."""
    body_timeout_s: float = 60.0
    send_timeout_s: float = 30.0
    """Seconds after which a client that does not read is dropped."""
    viewers_max: int = 100
    """Maximum number of live views at the same time."""
    viewers_per_user_max: int = 25
    requests_per_user_max: int = 128
    """Largest number of requests in progress of one user."""
    channels_named_max: int = 1_000
    """Maximum number of channels and queues with separate metrics."""
    login_total_s: float = 43_200.0
    """Seconds after which a browser drops its session cookie; the realm may end the session
    earlier."""
    hosts: frozenset[str] = frozenset()
    """Further names of the realm, in addition to those of this machine."""


class LiveView(Protocol):
    """A stream of stored or new events to a viewer."""

    stop: Callable[[PenstockError], None]
    """Ends the stream from the realm's side, with the reason."""


class HttpService:
    """The state that all HTTP requests of a realm share."""

    def __init__(self, native: NativeListener, limits: HttpLimits, *, is_secure: bool) -> None:
        """``native`` has the realm's native connections; ``is_secure`` states that clients use
        TLS."""
        self.native = native
        self.realm = native.realm
        self.version = native.version
        self.limits = limits
        self.quotas = Quotas(native.limits.each, native.realm.clock)
        self.requests = Shares(
            limits.requests_per_user_max,
            "requests in progress",
            "http.requests_per_user_max",
        )
        self._shares_of_views = Shares(
            limits.viewers_per_user_max, "live views or streams open", "http.viewers_per_user_max"
        )
        self.guard = Guard(self.realm.access, limits.hosts, is_secure=is_secure)
        self.files = Files()
        self._views: dict[LiveView, Callable[[], None]] = {}
        """Live views, each with a check that raises an error if the view must end."""
        self._viewers: Counter[str] = Counter()
        """Number of live views by principal."""
        self._stop_listening = self.realm.access.on_changed(self.check_views)
        self._stop_listening_for_leases = self.realm.access.on_changed(
            self.realm.leases.check_rights
        )
        self.registry = metrics.registry(
            self.realm, native, self._views, named_max=limits.channels_named_max
        )
        self.started_us = self.realm.clock.now_us()
        self.is_secure = is_secure
        self.buffers = Buffers(BUFFERS * limits.body_bytes_max)
        self._standstill = Standstill()
        self.is_stopping = asyncio.Event()

    def end(self, reason: RealmStopping) -> None:
        """End live views and leases, because the realm stops."""
        self._stop_listening()
        self._stop_listening_for_leases()
        self.realm.leases.stop(reason)
        for view in list(self._views):
            view.stop(reason)

    def update_standstill(self, now_s: float) -> None:
        """Update the detection of a standstill; called regularly with the loop's time."""
        backlog = (self.native.pending_bytes, self.realm.waiting_bytes)
        self._standstill.update(now_s, backlog, is_congested=self.is_congested)

    @property
    def state(self) -> Literal["ok", "stopping", "failed", "no-quorum"]:
        """State of the realm: ``ok``, ``stopping``, ``failed`` if it cannot store events, or
        ``no-quorum`` while the cluster's engine cannot."""
        if self.is_stopping.is_set():
            return "stopping"
        if self.native.suspended is not None:
            return "no-quorum"
        return "failed" if self.realm.has_ended else "ok"

    @property
    def stands_still(self) -> bool:
        """Whether publishers have not been read for at least ``STANDSTILL_S`` seconds."""
        return self._standstill.lasts_s(asyncio.get_running_loop().time()) >= STANDSTILL_S

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait."""
        return self.native.is_congested

    def waiting_bytes(self, change: int) -> None:
        """Add ``change`` bytes of publishes that have arrived. A negative ``change`` removes bytes
        whose publishes were answered."""
        self.native.pending_bytes += change

    @contextlib.contextmanager
    def viewing(
        self, view: LiveView, principal: Principal, check: Callable[[], None]
    ) -> Iterator[None]:
        """Count a live view while it is open. Raises ``Unavailable`` if too many views are open in
        total, and ``LimitReached`` if the user or principal has too many."""
        if len(self._views) >= self.limits.viewers_max:
            raise Unavailable(
                f"{self.limits.viewers_max} live views or streams are open, which is the limit "
                "(http.viewers_max); close some"
            )
        viewer = principal.name
        self.native.limits.each.check_subscriptions(self._viewers[viewer], viewer)
        with self._shares_of_views.one(principal):
            check()  # rights may have been revoked while the view was opened
            self._views[view] = check
            self._viewers[viewer] += 1
            try:
                yield
            finally:
                self._viewers -= Counter((viewer,))  # drops entries of zero
                self._views.pop(view, None)

    def check_views(self) -> None:
        """End views whose users have lost the right to read the channel, or whose token or session
        has ended."""
        for view, check in list(self._views.items()):
            try:
                check()
            except PenstockError as reason:
                view.stop(reason)
