"""How a blocking session ends: explicitly, at the end of its block, or with the interpreter."""

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
"""Sessions of this process that are open."""


@atexit.register
def _close_all() -> None:
    """Confirm what was settled last: the interpreter ends, and of all threads only the clients'
    own and daemon threads are left. What cannot be confirmed was reported."""
    interpreter_ends()
    for session in list(_open):
        with contextlib.suppress(PenstockError):
            session.close()


class SessionEnd:
    """Closing a session, and what else of it belongs to the thread that calls."""

    def __init__(
        self, inner: AioSession, loop: LoopThread, on_close: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._on_close = on_close
        _open.add(self)

    def on_error(self, listener: ErrorListener) -> None:
        """Hear of errors that belong to no call; called on the client's own thread."""
        self._inner.on_error(listener)

    def on_interruption(self, listener: InterruptionListener) -> None:
        """Hear when the session loses its connection, with the reason as an error, and with None
        when it has one again; called on the client's own thread.

        The error is ``RealmStopping`` when a node hands over or is stopped, ``NoQuorum`` while the
        cluster can store nothing, and ``ConnectionLost`` where the realm has not said why. The
        session goes on by itself (SEM N2, N4): what is asked meanwhile waits, up to
        ``reconnect_timeout``.
        """
        self._inner.on_interruption(listener)

    def wait_for_events(self, starts: Mapping[Destination, int], timeout: Duration) -> bool:
        """Wait until one of the channels and queues has an event of the id given with it, or a
        later one; False: none has for ``timeout`` seconds."""
        inner = {each._inner: start for each, start in starts.items()}
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
        durable: str,
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
        durable: str | None = None,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription | PatternDurableSubscription:
        """Read all channels that ``pattern`` names, also those that are made later (SEM D21):
        ``"orders/*"``, ``"eu/**"``, ``"day-?"``, or several between commas. ``*`` stands for any
        part of a name up to the next ``/``, ``**`` for any part across them.

        Each channel is read from ``start`` on, and one that is made later from its first event.
        The channels have their turns, so that a busy one does not hold up the others;
        ``event.channel`` tells where an event came from. Channels that one may not read are left
        out. ``buffer_bytes`` counts for each channel; archives are not read.

        With ``durable`` it takes a seat at the durable of that name on each channel that has one:
        events are to be acknowledged, at most ``window`` of a channel unsettled at a time.
        Raises ``InvalidArgument`` for options of the other kind.
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
        """End the session in order: settled events are settled, all others go back (SEM D13).

        It waits until the realm has confirmed what is on its way. Raises ``ConnectionLost`` if that
        cannot be confirmed: the last settled events may then be delivered again. Otherwise it
        raises the first error of a settlement that neither a flush nor a close has raised. Closing
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
