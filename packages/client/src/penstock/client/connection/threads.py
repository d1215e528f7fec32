"""The private event loop of a blocking session, which runs in a separate thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import IllegalState, PenstockError, SessionClosed

T = TypeVar("T")


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fast_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: of uvloop if that is installed, otherwise of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_ending = threading.Event()
"""Set when the interpreter exits, before it closes the open sessions."""


def interpreter_ends() -> None:
    """Record that the interpreter exits and is about to close the open sessions."""
    _ending.set()


def is_ending() -> bool:
    """Return whether the interpreter exits. Errors are no longer reported then."""
    return _ending.is_set()


def hold_daemon() -> None:
    """If the interpreter exits and the current thread is a daemon, block the thread forever.

    Python stops blocked daemon threads silently. An error of the closed session would instead be
    printed after the output of the program.
    """
    if _ending.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


class LoopThread:
    """An event loop in a thread, which runs coroutines for blocking callers. Several threads may
    call it."""

    def __init__(self, loop_factory: LoopFactory = fast_loop) -> None:
        self._loop = loop_factory()
        self._pid = os.getpid()
        started = threading.Event()
        # A daemon thread, because Python waits for all other threads before it closes the open
        # sessions, and this thread only ends with its session.
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="penstock-loop", daemon=True
        )
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        """Run the loop until it is stopped, then end its tasks and close it."""
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks(self._loop))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop, and return its result.

        If another event loop runs in the calling thread, as in a notebook, it is blocked during the
        call. Ctrl-C ends the call and cancels the work. Raises ``IllegalState`` if it is called on
        the thread of the loop, and ``SessionClosed`` after a fork or after the session was closed.
        """
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except PenstockError:
            work.close()
            hold_daemon()
            raise
        except BaseException as error:
            # Ctrl-C, or another thread has closed the loop between the check and this call.
            self._close_unless_started(work)
            if isinstance(error, RuntimeError) and self._loop.is_closed():
                hold_daemon()
                raise SessionClosed("the session is closed") from None
            raise
        try:
            return future.result()
        except CancelledError:
            hold_daemon()
            raise SessionClosed("the session was closed during the call") from None
        except PenstockError as error:
            if isinstance(error, SessionClosed):
                hold_daemon()
            # The traceback shows the caller's code, without the steps inside the client.
            raise error.with_traceback(None) from error.__cause__
        except BaseException:
            future.cancel()
            raise

    def _close_unless_started(self, work: Coroutine[Any, Any, object]) -> None:
        """Close a coroutine unless the loop has started it.

        After an interruption, the calling thread does not know whether the coroutine was passed to
        the loop. The loop checks this after the turn in which it would have started the coroutine.
        Without the close, Python would warn about a coroutine that was never awaited.
        """

        def schedule_close() -> None:
            # Called soon and not now, so that it runs after the first step of the work.
            self._loop.call_soon(close)

        def close() -> None:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

        try:
            self._loop.call_soon_threadsafe(schedule_close)
        except RuntimeError:  # the loop is closed, and starts nothing
            work.close()

    def call_from_finalizer(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the coroutine that ``begin`` returns, on behalf of a generator's finalizer. Python
        may call a finalizer in any thread and while the interpreter exits.

        Errors are not raised: the program could not catch them, and Python would print them. If the
        session has ended, nothing is done: its end has given up the seats and reported the loss to
        listeners.
        """
        # At the very end of the interpreter, the names of modules are None.
        if os is None or not self.is_usable:
            return
        if self.is_own_thread:
            start_task(begin(), name="penstock-closing", on_failure=leave_to_owner)
            return
        with suppress(PenstockError):
            self.call(begin())

    def soon(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop without waiting for it. Any thread may call this.

        Raises ``SessionClosed`` after a fork or after the session was closed.
        """
        refusal = self._end()
        if refusal is not None:
            hold_daemon()
            raise refusal
        self._loop.call_soon_threadsafe(action)

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop after ``delay_s`` seconds, without waiting."""
        if self.is_own_thread:
            self._loop.call_later(delay_s, action)
        else:
            self.soon(lambda: self._loop.call_later(delay_s, action))

    def _end(self) -> PenstockError | None:
        """Return the error that calls raise because the loop has ended; None if it runs."""
        if os.getpid() != self._pid:
            return SessionClosed(
                "this session was opened before a fork; open a new session in the child process"
            )
        if not self._thread.is_alive() or self._loop.is_closed():
            return SessionClosed("the session is closed")
        return None

    def _check(self) -> None:
        """Raise an error if a blocking call is not possible now, or not on this thread."""
        ended = self._end()
        if ended is not None:
            raise ended
        if self.is_own_thread:
            raise IllegalState(
                "a blocking call on the client's own thread, as in an error listener, would never "
                "return; make the call in another thread"
            )

    @property
    def is_usable(self) -> bool:
        """Whether calls are possible. False after a close and in a forked child process."""
        return self._end() is None

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Stop the loop and its thread."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_own_thread:
            self._thread.join()


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks, so that calls that wait for them raise an error."""
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
