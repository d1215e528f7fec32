"""An embedded realm on virtual time, for tests of programs that use a realm."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from penstock.client.connection.arguments import Duration, wait_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.terms import SessionTerms
from penstock.client.handles.opening import Opening
from penstock.client.handles.session import Session
from penstock_core.columns.schema.moments import moment_of, us_of
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_server.bootstrap import open_realm
from penstock_server.bootstrap.embedded_realm import Realm, embedded_url
from penstock_server.runtime.realm import RunningRealm
from penstock_testing.virtual_loop import IS_UPKEEP, PATIENCE_S, LeapingLoop, LeapingThread

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_S: Final = 100 * PATIENCE_S
"""Largest step of the clock, in seconds."""
STORY_S: Final = 10 * PATIENCE_S
"""Virtual seconds after which an asynchronous test counts as stuck."""

_SETTINGS: Final = {
    # The realm sweeps in each leap, even in the shortest.
    "storage__sweep_interval_ms": 1,
    # The longest timeout of AMQP is 2**32 ms, which are 49 days.
    "listen__idle_timeout_s": 4_000_000.0,
}
"""Settings that a realm on virtual time needs; those of the caller take precedence."""
_PING_AFTER_S: Final = 2_000_000.0
"""Seconds of silence after which a session pings: half of the idle timeout above."""


class _PatientTerms(SessionTerms):
    """Terms of a session in this process. It is always notified of the end of its connection, so it
    keeps a silent connection, and pings before the realm ends the connection."""

    ping_after_s = _PING_AFTER_S

    def is_silent(self, silent_s: float) -> bool:
        return False


class VirtualRealm(Realm):
    """A realm embedded in this process whose clock only a test moves::

        with VirtualRealm() as realm, realm.connect() as session:
            orders = session.channels.create("orders", ttl=86_400_000)
            orders.publish(b"unpaid")
            realm.advance(hours=25)
            assert not list(orders.browse())

    It runs the server's code. Its clock moves only in :meth:`advance`, in :meth:`run`, and while a
    call of its sessions waits: ``queue.pop(timeout=60)`` takes a minute of virtual time, and no
    real time. Only calls of the thread that created the realm move the clock. It stands still while
    a handler of a subscription, or a function in ``asyncio.to_thread``, computes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        start: datetime | None = None,
        **settings: Any,
    ) -> None:
        """``start`` is the initial time of the clock, by default the time of the machine; it needs
        a time zone. ``settings`` are those of ``penstock.Realm``.

        Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
        """
        start = start or datetime.now(UTC)
        if start.tzinfo is None:
            raise InvalidArgument(
                f"start is {start!r}, which has no time zone; give one, such as "
                "datetime(2026, 5, 4, 12, tzinfo=UTC)"
            )
        self._start_us = us_of(start)
        super().__init__(directory, **_SETTINGS | settings)

    # --- time ----------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the realm's clock, in UTC."""
        return moment_of(self.clock.now_us())

    def advance(
        self,
        duration: Duration | None = None,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
    ) -> None:
        """Move the clock: ``advance(hours=25)``, ``advance("25h")``, ``advance(timedelta(...))``.

        Everything that becomes due on the way happens at its time: expiry, redelivery, schedules,
        timeouts. All of it is complete on return.
        Raises ``InvalidArgument``, and ``IllegalState`` if the realm is closed, within :meth:`run`,
        and in other threads than the one that created the realm.
        """
        __tracebackhide__ = True
        by_s = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        if duration is not None:
            by_s += (
                wait_s(duration, "duration") if isinstance(duration, str) else _seconds(duration)
            )
        elif not by_s:
            raise InvalidArgument(
                'advance needs a duration, such as advance(hours=25) or advance("25h")'
            )
        self._advance_by(by_s)

    def advance_to(self, moment: datetime) -> None:
        """Move the clock to ``moment``, which needs a time zone, as :meth:`advance` does."""
        __tracebackhide__ = True
        if moment.tzinfo is None:
            raise InvalidArgument(f"moment is {moment!r}, which has no time zone; give one")
        self._advance_by((moment - self.now).total_seconds())

    def _advance_by(self, by_s: float) -> None:
        __tracebackhide__ = True
        self._check_usable("advance")
        if not 0 <= by_s <= LONGEST_S:
            raise InvalidArgument(
                f"the clock cannot be moved by {by_s:g} s; allowed are 0 to {LONGEST_S:.0f} s in "
                "one step"
            )
        self._thread.call(self._wait_until_settled(by_s), patience_s=None)

    async def _wait_until_settled(self, by_s: float) -> None:
        """Wait until ``by_s`` seconds have passed and all that became due is complete."""
        await asyncio.sleep(by_s)
        await self.clock.settled()

    # --- asynchronous tests --------------------------------------------------------------

    def run(
        self, story: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an asynchronous test on the loop of the realm, and return its result::

            async def story() -> None:
                async with realm.aio_connect() as session:
                    ...
                    await asyncio.sleep(86_400)  # a day of virtual time

            realm.run(story)

        Each ``asyncio.sleep`` and ``asyncio.timeout`` in it uses virtual time.
        Raises the errors of the story, ``InvalidArgument`` and ``IllegalState``.
        """
        __tracebackhide__ = True
        self._check_usable("run")
        candidate: object = story
        # A frequent mistake is run(story()). The coroutine is closed, because Python would
        # otherwise warn that it was never awaited.
        if inspect.iscoroutine(candidate):
            candidate.close()
        work = story(*args, **kwargs) if callable(story) else None
        if not inspect.iscoroutine(work):
            raise InvalidArgument(
                f"{story!r} is not a coroutine function; pass one to run, and its arguments, such "
                "as run(story, 1)"
            )
        outcome: T | _Raised = self._thread.call(
            _result_or_error(work), patience_s=STORY_S, name=work.__qualname__
        )
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def aio_connect(self, user: str = "") -> Opening:
        """Open a session of ``penstock.aio`` with this realm, within :meth:`run`. It has the rights
        of a session of :meth:`connect`."""
        return Opening(self._open_session(user))

    async def _open_session(self, user: str) -> Session:
        if asyncio.get_running_loop() is not self.clock:
            raise IllegalState(
                "aio_connect was called outside of run, on another loop than that of the realm; "
                "pass the coroutine function that connects to run"
            )
        return await self._session(user)

    def _check_usable(self, call: str) -> None:
        """Raise ``IllegalState`` if the caller may not move the clock here. ``call`` is the name of
        the called method."""
        __tracebackhide__ = True
        if self._thread.is_own_thread:
            raise IllegalState(
                f"{call} would block the loop it waits for; within run, "
                "`await asyncio.sleep(seconds)` moves the clock"
            )
        if self._closed:
            raise IllegalState(f"{call} needs an open realm; this one is closed")
        if not self._thread.is_owner:
            raise IllegalState(
                f"{call} was called in another thread than the one that created the realm; call it "
                "in that thread"
            )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, at {self.now:%Y-%m-%d %H:%M:%S} UTC>".replace(
            "<Realm", "<VirtualRealm"
        )

    # --- the realm -----------------------------------------------------------------------

    def _new_loop(self) -> LeapingThread:
        self.clock = LeapingLoop(self._start_us)
        self._thread = LeapingThread(self.clock)
        return self._thread

    async def _open(self) -> RunningRealm:
        realm = await open_realm(self._directory, self.settings, clock=self.clock)
        self.clock.next_due_us = lambda: realm.shard.timers.next_us
        return realm

    async def _stop(self) -> None:
        """Stop the realm. Time passes during the stop, because connections that end wait for
        timers."""
        with self.clock.time_passes():
            await super()._stop()

    def _start_part(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        # The timers of the realm's own tasks are upkeep, so their context is marked.
        start = super()._start_part

        def start_upkeep() -> asyncio.Task[None]:
            IS_UPKEEP.set(True)
            return start(work, name)

        return copy_context().run(start_upkeep)

    def _new_connection(self, user: str) -> RealmConnection:
        return RealmConnection(
            embedded_url(user),
            connector=lambda make: self._connect(make, user),
            terms=_PatientTerms(),
        )


def _seconds(duration: float | timedelta) -> float:
    """Return a duration in seconds; a value that is not finite becomes infinity."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration) if math.isfinite(duration) else math.inf
    raise InvalidArgument(
        f"duration is {duration!r}; give seconds, a text such as '25h', or a timedelta"
    )


class _Raised(NamedTuple):
    """An error of a story, passed as a result: the blocking client would cut the traceback of an
    error that it raises."""

    error: BaseException


async def _result_or_error(work: Coroutine[Any, Any, T]) -> T | _Raised:
    try:
        return await work
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  it is raised to the caller
        return _Raised(error)
