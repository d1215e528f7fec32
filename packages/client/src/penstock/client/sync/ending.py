"""The end of a blocking session: by ``close``, at the end of its block, or with the interpreter."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, overload

from penstock.client.connection.arguments import Duration
from penstock.client.connection.session_listeners import ErrorListener, InterruptionListener
from penstock.client.connection.threads import LoopThread, interpreter_ends
from penstock.client.handles.named import DurableLike
from penstock.client.handles.session import Session as AioSession
from penstock.client.reading.pattern_subscription import CHANNEL_BUFFER_BYTES
from penstock.client.reading.pattern_subscription import (
    PatternDurableSubscription as AioPatternDurableSubscription,
)
from penstock.client.reading.pattern_subscription import (
    PatternSubscription as AioPatternSubscription,
)
from penstock.client.reading.start_positions import StartLike
from penstock.client.sync.sync_destination import Destination
from penstock.client.sync.sync_pattern_subscription import (
    PatternDurableSubscription,
    PatternSubscription,
)
from penstock_core.vocabulary.errors import PenstockError

_open: weakref.WeakSet[SessionEnd] = weakref.WeakSet()
"""The open sessions of this process."""


@atexit.register
def _close_all() -> None:
    """Close all open sessions at the end of the interpreter, so that their last settlements are
    confirmed. Only the clients' threads and daemon threads still run then. Errors are only
    reported, as no caller is left to raise them to."""
    interpreter_ends()
    for session in list(_open):
        with contextlib.suppress(PenstockError):
            session.close()


class SessionEnd:
    """The methods of a session that cannot be generated: closing, listeners, subscriptions to
    patterns."""

    def __init__(
        self, inner: AioSession, loop: LoopThread, on_close: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._on_close = on_close
        _open.add(self)

    def on_error(self, listener: ErrorListener) -> None:
        """Call ``listener``, on the client's thread, with each error that no call can raise:
        refused publishes of a pipelined producer, and settlements that were lost or refused."""
        self._inner.on_error(listener)

    def on_interruption(self, listener: InterruptionListener) -> None:
        """Call ``listener``, on the client's thread, with an error when the session loses its
        connection, and with None when it is connected again.

        The error is ``RealmStopping`` if a node stops or hands the realm over, ``NoQuorum`` while
        the cluster cannot store anything, and ``ConnectionLost`` if the realm sent no reason. The
        session reconnects by itself (SEM N2, N4). Calls made during an interruption wait for up
        to ``reconnect_timeout`` seconds.
        """
        self._inner.on_interruption(listener)

    def wait_for_events(self, starts: Mapping[Destination, int], timeout: Duration) -> bool:
        """Wait until a channel or queue in ``starts`` has an event whose id is at least the one
        given for it. Return False if this does not happen within ``timeout`` seconds::

            session.wait_for_events({orders: 42, invoices: 7}, timeout=5)
        """
        inner = {store._inner: start for store, start in starts.items()}
        return self._loop.call(self._inner.wait_for_events(inner, timeout))

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        start: StartLike = "latest",
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription: ...

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        durable: DurableLike,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternDurableSubscription: ...

    def subscribe(
        self,
        pattern: str,
        *,
        start: StartLike | None = None,
        durable: DurableLike | None = None,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription | PatternDurableSubscription:
        """Read all channels whose names match ``pattern``, including channels created later
        (SEM D21)::

            with session.subscribe("orders/*") as events:
                for event in events:
                    print(event.channel, event.data)

        A pattern is a text such as ``"orders/*"``, ``"eu/**"`` or ``"day-?"``, or several of them
        separated by commas. ``*`` matches any characters up to the next ``/``, ``**`` matches
        across ``/``, and ``?`` matches one character.

        Each channel is read from ``start`` on; a channel created later is read from its first
        event. The channels take turns, so that a busy channel does not delay the others.
        ``event.channel`` is the name of the channel an event was published on. Channels that the
        session's user may not read are left out. ``buffer_bytes`` applies to each channel.
        Archives are not read.

        With ``durable`` the subscription takes a seat at the durable of that name on each channel
        that has one. Its events have to be acknowledged; at most ``window`` events of each channel
        are unsettled at a time.

        Raises ``InvalidArgument`` if ``start`` or ``merged`` is combined with ``durable``, or
        ``window`` or ``auto_ack`` is used without it.
        """
        options: dict[str, Any] = {
            "start": start,
            "durable": durable,
            "window": window,
            "auto_ack": auto_ack,
            "selector": selector,
            "timeout": timeout,
            "merged": merged,
            "buffer_bytes": buffer_bytes,
        }
        inner: AioPatternSubscription | AioPatternDurableSubscription = self._inner.subscribe(
            pattern, **options
        )
        if isinstance(inner, AioPatternDurableSubscription):
            return PatternDurableSubscription(inner, self._loop)
        return PatternSubscription(inner, self._loop)

    def close(self) -> None:
        """End the session. Settlements sent so far are kept; all other delivered events are
        available to other clients again (SEM D13).

        Waits without a time limit until the realm has confirmed the settlements in transit. Raises
        ``ConnectionLost`` if the realm cannot confirm them: those events may then be delivered
        again. Otherwise raises the first settlement error that neither a flush nor a close has
        raised. Closing a closed session, or one in a forked child process, does nothing.
        """
        _open.discard(self)
        if not self._loop.is_usable:
            return
        try:
            self._loop.call(self._inner.close())
        finally:
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except PenstockError:
            if error is None:
                raise  # otherwise it was reported, and the earlier error matters
