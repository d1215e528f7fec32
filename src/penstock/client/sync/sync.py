"""The blocking client: the async client's methods, over one private loop thread.

A test compares the two surfaces, so neither can forget a method.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.joins import Redriven
from penstock.api.realm import RealmInfo
from penstock.client.connection.credentials import Token
from penstock.client.connection.threads import LoopThread
from penstock.client.connection.urls import parse_url
from penstock.client.handles.session import RECONNECT_TIMEOUT_S, ErrorListener
from penstock.client.handles.session import Session as AioSession
from penstock.client.publishing.transaction import Named
from penstock.client.sync.sync_access import Access
from penstock.client.sync.sync_channels import Channel, Channels
from penstock.client.sync.sync_destination import Destination, Schedule
from penstock.client.sync.sync_durables import Durable, Durables, DurableSubscription
from penstock.client.sync.sync_holding import DurableHold
from penstock.client.sync.sync_joins import Joins
from penstock.client.sync.sync_queues import Queue, Queues, Reader
from penstock.client.sync.sync_subscription import Subscription
from penstock.client.sync.sync_transaction import JointTransaction, Transaction
from penstock.core.vocabulary.errors import ConnectionLost, PenstockError

if TYPE_CHECKING:
    from penstock.client.copies.backup import BackupResult, FolderLike
    from penstock.client.copies.copy_files import CopyResult
    from penstock.core.vocabulary.ports import Blobs


_open: weakref.WeakSet[Session] = weakref.WeakSet()
"""Sessions of this process that nobody has closed."""


@atexit.register
def _close_all() -> None:
    """The interpreter ends, and all threads but the clients' own have: what was settled last may
    still be on its way. What cannot be confirmed was reported."""
    for session in list(_open):
        with contextlib.suppress(PenstockError):
            session.close()


class Session:
    """A session with a realm. May be used from several threads; close it, or use ``with``."""

    def __init__(
        self, inner: AioSession, loop: LoopThread, on_close: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._on_close = on_close
        self.access = Access(inner.access, loop)
        self.channels = Channels(inner.channels, loop)
        self.queues = Queues(inner.queues, loop)
        self.joins = Joins(inner.joins, loop)
        _open.add(self)

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    @property
    def realm_id(self) -> str:
        """Identity of the realm; the same over restarts."""
        return self._inner.realm_id

    @property
    def event_bytes_max(self) -> int:
        """Size of the largest event the realm takes (SEM E7)."""
        return self._inner.event_bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now. What is asked without one waits for the next."""
        return self._inner.is_connected

    def info(self) -> RealmInfo:
        """What the realm says of itself."""
        return self._loop.call(self._inner.info())

    def on_error(self, listener: ErrorListener) -> None:
        """Hear of errors that belong to no call; called on the client's own thread."""
        self._inner.on_error(listener)

    def wait_for_events(self, starts: Mapping[Destination, int], timeout: float) -> bool:
        """Wait until one of the channels and queues has an event of the id given with it, or a
        later one; False: none has for ``timeout`` seconds."""
        inner = {each._inner: start for each, start in starts.items()}
        return self._loop.call(self._inner.wait_for_events(inner, timeout))

    # --- transactions --------------------------------------------------------------------

    def transaction(self) -> JointTransaction:
        """Publish to several channels and queues in one step (SEM X4)::

        with session.transaction() as tx:
            tx.publish(orders, b"...")
            tx.publish(work, b"...")
        """
        return JointTransaction(self._inner.transaction(), self._loop)

    def is_committed(self, transaction_id: str) -> bool:
        """Whether a transaction, of this session or another, was committed (SEM X2).

        Raises ``NoSuchTransaction`` for one never begun, or ended more than 24 hours ago.
        """
        return self._loop.call(self._inner.is_committed(transaction_id))

    # --- publishing in two steps ---------------------------------------------------------

    def stage(
        self, store: Named, bodies: Sequence[pa.RecordBatch], *, group: str = ""
    ) -> list[str]:
        """Put batches aside on the realm; see :meth:`penstock.aio.Session.stage`."""
        return self._loop.call(self._inner.stage(store, bodies, group=group))

    def commit_stages(
        self, stages: Sequence[tuple[int, Sequence[str]]], *, producer: str, sequence: int
    ) -> dict[int, range]:
        """Publish what was staged for several stores, in one step and once in the realm; see
        :meth:`penstock.aio.Session.commit_stages`."""
        return self._loop.call(
            self._inner.commit_stages(stages, producer=producer, sequence=sequence)
        )

    def drop_stages(self, stages: Sequence[str]) -> None:
        """Forget what was staged; what was committed stays."""
        self._loop.call(self._inner.drop_stages(stages))

    # --- administration ------------------------------------------------------------------

    def redrive(
        self, source: str, to: str = "", *, selector: str = "", dry_run: bool = False
    ) -> Redriven:
        """Publish dead events again, each once; see :meth:`penstock.aio.Session.redrive`."""
        return self._loop.call(self._inner.redrive(source, to, selector=selector, dry_run=dry_run))

    def pause_publishing(self) -> None:
        """Refuse publishes and commits of all clients from now on, also after a restart; the
        realm's own work, reading and administration go on (SEM X5)."""
        self._loop.call(self._inner.pause_publishing())

    def resume_publishing(self) -> None:
        """Take publishes and commits again (SEM X5)."""
        self._loop.call(self._inner.resume_publishing())

    def back_up(self, folder: FolderLike) -> BackupResult:
        """Write all that the realm has stored into a folder, as it stands now; see
        :meth:`penstock.aio.Session.back_up`."""
        return self._loop.call(self._inner.back_up(folder))

    def copy_files(self, place: Blobs, *, prune: bool = False) -> CopyResult:
        """Bring a copy of the realm's sealed files up to date; see
        :meth:`penstock.aio.Session.copy_files`."""
        return self._loop.call(self._inner.copy_files(place, prune=prune))

    # --- the end -------------------------------------------------------------------------

    def close(self) -> None:
        """End the session in order: what was settled is settled, what was not goes back (SEM D13).

        It waits until the realm has confirmed what is on its way to it. Raises ``ConnectionLost``
        when that can not be had any more: what was settled last may be delivered again. Closing
        again, or in a forked child, does nothing.
        """
        _open.discard(self)
        if not self._loop.is_usable:
            return
        try:
            self._loop.call(self._inner.close())
        finally:
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except ConnectionLost:
            if error is None:
                raise  # else it was reported, and what went wrong before is what matters


def connect(
    url: str, *, reconnect_timeout: float = RECONNECT_TIMEOUT_S, token: Token | None = None
) -> Session:
    """Open a session with the realm at ``url``, e.g. ``penstock://localhost:9000``.

    ``penstock://user:password@host`` signs in; the password may come from ``PENSTOCK_PASSWORD``
    instead. ``token`` is a bearer token, or a function that gives one that is good now.

    Several addresses mean fail-over. A connection that is lost is made again; when that does not
    succeed for ``reconnect_timeout`` seconds, whoever waits gets ``CannotConnect``.
    Raises ``CannotConnect``, ``AuthenticationFailed``, ``AccessDenied``, ``InvalidArgument``.
    """
    inner = AioSession(parse_url(url), reconnect_timeout=reconnect_timeout, token=token)
    loop = LoopThread()
    try:
        loop.call(inner.open())
    except BaseException:
        loop.close()
        raise
    return Session(inner, loop, loop.close)


__all__ = [
    "Access",
    "Channel",
    "Channels",
    "Destination",
    "Durable",
    "DurableHold",
    "DurableSubscription",
    "Durables",
    "Joins",
    "JointTransaction",
    "Queue",
    "Queues",
    "Reader",
    "Schedule",
    "Session",
    "Subscription",
    "Transaction",
    "connect",
]
