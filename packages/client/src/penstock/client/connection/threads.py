"""The private event loop of a blocking session, in its own thread."""

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
    """Return a loop of uvloop if it is installed, otherwise one of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_ending = threading.Event()
"""Set at the end of the interpreter, before it closes the sessions."""


def interpreter_ends() -> None:
    """Note that the interpreter is about to close the open sessions."""
    _ending.set()


def is_ending() -> bool:
    """Return whether the interpreter is closing the sessions; errors are no longer reported
    then."""
    return _ending.is_set()


def hold_daemon() -> None:
    """Block a daemon thread forever if the interpreter has ended its session. Python stops such
    threads silently; an error in one would be printed after the output of the program."""
    if _ending.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


class LoopThread:
    """Runs coroutines for blocking callers. Several threads may use it."""

    def __init__(self, loop_factory: LoopFactory = fast_loop) -> None:
        self._loop = loop_factory()
        self._pid = os.getpid()
        started = threading.Event()
        # It is a daemon, because Python waits for all other threads before it closes the open
        # sessions.
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

        Another event loop that runs in the calling thread, as in a notebook, is blocked during the
        call. Ctrl-C ends the call and cancels the work. Raises ``IllegalState`` on the thread of
        the loop, and ``SessionClosed`` after a fork or a close.
        """
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except PenstockError:
            work.close()
            hold_daemon()
            raise
        except BaseException as error:  # Ctrl-C, or another thread has closed the loop
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
        """Close a coroutine that may or may not have reached the loop. The loop decides, after the
        turn in which it would have started the coroutine. Closing avoids Python's warning about a
        coroutine that was never awaited."""

        def schedule_close() -> None:
            self._loop.call_soon(close)  # runs after the first step of the work, if it was started

        def close() -> None:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

        try:
            self._loop.call_soon_threadsafe(schedule_close)
        except RuntimeError:  # the loop is closed, and starts nothing
            work.close()

    def call_from_finalizer(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the coroutine that ``begin`` returns, from the finalizer of a generator, which may
        run in any thread and while the interpreter exits.

        Errors are not raised: they could not be caught, and Python would print them. If the session
        has ended, it has left its seats, and has reported a lost connection to its listeners.
        """
        if os is None or not self.is_usable:  # modules are empty at the very end of the interpreter
            return
        if self.is_own_thread:
            start_task(begin(), name="penstock-closing", on_failure=leave_to_owner)
            return
        with suppress(PenstockError):
            self.call(begin())

    def soon(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop, without waiting, from any thread."""
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
        """Return the error for calls that are no longer possible; None if they are possible."""
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
        """Whether calls are possible: not after a close, and not in a forked child process."""
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
